"""What an engine counts, and where its steps end."""

import numpy
import pytest
import world
import zeroshard
from test_after_failures import backward, initialize, take

NAMES = ("global_steps", "skipped_steps", "micro_steps", "global_samples")


def counts(engine):
    return [getattr(engine, name) for name in NAMES]


def test_an_engine_that_has_ended_still_tells_its_counts():
    first = initialize(0, micro_batches=2)
    for step in range(3):
        take(first, step)
    second = initialize(0, model=first.module)
    assert counts(first) == [1, 0, 3, 6] and counts(second) == [0, 0, 0, 0]
    assert first.is_gradient_accumulation_boundary() and first.train_batch_size() == 4
    first.global_steps = 9
    assert counts(first) == [9, 0, 3, 6]
    take(second, 0)
    second.destroy()
    second.destroy()
    assert counts(second) == [1, 0, 1, 2] and counts(first) == [9, 0, 3, 6]


def test_scripts_may_set_the_counts():
    engine = initialize(0, micro_batches=2)
    take(engine, 0)
    engine.micro_steps += 1
    engine.global_steps = numpy.int64(40)
    assert counts(engine) == [40, 0, 2, 2]
    assert not engine.is_gradient_accumulation_boundary()
    with pytest.raises(TypeError):
        engine.global_steps = 1.5
    take(engine, 1)
    assert engine.is_gradient_accumulation_boundary() and not engine.was_step_applied()
    take(engine, 2)
    assert counts(engine) == [41, 0, 4, 6] and engine.was_step_applied()


def test_the_caller_may_say_where_a_step_ends_and_leave_it_again():
    engine, other = initialize(0, micro_batches=2), initialize(0, micro_batches=3)
    steps = []
    for boundary in (True, False, False, None, None, None):
        engine.set_gradient_accumulation_boundary(boundary)
        steps.append(engine.is_gradient_accumulation_boundary())
        take(engine, len(steps))
        take(other, len(steps))
    assert steps == [True, False, False, True, False, True]
    assert counts(engine) == [3, 0, 6, 12] and counts(other) == [2, 0, 6, 12]


def skip_too_often(stage):
    engine = initialize(stage, micro_batches=2)
    for _ in range(3):
        backward(engine, 0, scale=float("nan"))
        engine.step()
    backward(engine, 0)
    with pytest.raises(zeroshard.StateError, match="2 steps in a row"):
        engine.step()
    return counts(engine), engine.is_gradient_accumulation_boundary()


@pytest.mark.parametrize("stage", [0, 3])
def test_the_step_that_ends_a_run_of_skipped_ones_is_counted(stage):
    assert world.run(2, skip_too_often, stage=stage) == [[[2, 2, 4, 16], False]] * 2


def leave_the_last_to_the_step(stage, outside):
    """The norms of steps whose last micro-batch was under no_sync, after one that was discarded so."""
    norms = []
    for within in (False, True):
        engine = initialize(stage, micro_batches=2)
        if within:
            with engine.no_sync():
                backward(engine, 9)
            engine.zero_grad()
        for step in range(2):
            for micro in range(2):
                if within and not (outside and micro == 0):
                    with engine.no_sync():
                        backward(engine, 2 * step + micro)
                else:
                    backward(engine, 2 * step + micro)
                engine.step()
            norms.append(engine.get_global_grad_norm())
        norms.append(counts(engine))
    return norms[:3], norms[3:]


@pytest.mark.parametrize("stage", range(4))
def test_a_step_takes_what_no_sync_has_left(stage):
    for outside in (False, True):
        for expected, found in world.run(2, leave_the_last_to_the_step, stage=stage, outside=outside):
            assert found == [pytest.approx(each, rel=1e-6) for each in expected]
