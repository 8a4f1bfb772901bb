"""Ranks with unequal work: fewer batches than the others, none at all, another module. No rank waits for ever."""

import random

import models
import pytest
import torch
import world
import zeroshard
from leftovers import (
    END_S,
    nothing_left,  # noqa: F401 - a fixture
)
from test_faults import call_another_unit, configuration, evaluate_once_more, save_alone, skip_a_batch, skip_backward

pytestmark = pytest.mark.fault
BATCHES = 5


def epoch(engine, batches):
    for step in range(batches):
        ids = models.share(models.tokens(step, 0, 2 * world.size()), world.rank(), world.size())
        engine.backward(models.language_loss(engine, ids))
        engine.step()


def fewer_batches(stage, transport, left=BATCHES - 2):
    """Of one epoch, after which all save."""
    engine, *_ = zeroshard.initialize(model=models.tiny_llama(), config=configuration(stage, transport, timeout_s=4))
    epoch(engine, left if world.rank() == 1 else BATCHES)
    engine.save_checkpoint("/dev/null/never")


def no_batch(stage, transport):
    fewer_batches(stage, transport, left=0)


def only_forward(stage, transport):
    """Rank 1 evaluates what the others train on."""
    engine, *_ = zeroshard.initialize(model=models.tiny_llama(), config=configuration(stage, transport, timeout_s=4))
    if world.rank() != 1:
        epoch(engine, BATCHES)
        return
    with torch.no_grad():
        for step in range(BATCHES):
            engine(input_ids=models.share(models.tokens(step, 0, 2 * world.size()), 1, world.size()))
    engine.step()


def stop_early(stage, transport):
    """The agreed way: who has no more batches asks all to stop, and they do, after the same step."""
    engine, *_ = zeroshard.initialize(model=models.tiny_llama(), config=configuration(stage, transport))
    for step in range(20):
        if world.rank() == 1 and step == 3:
            engine.request_stop()
        epoch(engine, 1)
        if engine.stop_requested:
            break
    return [engine.global_steps, engine.parameter_digest()]


def check_errors(case, ranks):
    for rank in ranks:
        what = (case.__name__, rank.exit_code, rank.error)
        assert rank.exit_code == 1 and "ranks disagree: rank " in rank.error and "rank 1 called" in rank.error, what
    assert max(rank.seconds for rank in ranks) < END_S, case.__name__


@pytest.mark.row("U1")
@pytest.mark.parametrize(("case", "stage"), [(fewer_batches, 3), (no_batch, 3), (no_batch, 1), (only_forward, 3)])
def test_unequal_work_is_named_on_both_sides(case, stage):
    check_errors(case, world.run_ranks(3, case, stage=stage, transport="shm", timeout_s=40))


@pytest.mark.row("U1")
@pytest.mark.parametrize("transport", ["shm", "process_group"])
def test_a_rank_without_further_batches_stops_all_at_the_same_step(transport):
    assert len({tuple(end) for end in world.run(3, stop_early, stage=3, transport=transport)}) == 1


# At stages below 3 a forward pass alone communicates nothing, and so cannot differ.
ANY_STAGE, STAGE_3 = (skip_backward, save_alone, fewer_batches, no_batch), (skip_a_batch, evaluate_once_more)
CASES = [*ANY_STAGE, *STAGE_3, only_forward, call_another_unit]


@pytest.mark.row("U1")
@pytest.mark.matrix
def test_no_rank_waits_for_ever_in_a_hundred_runs():
    first = random.SystemRandom().randrange(10**6)
    for seed in range(first, first + 100):
        generator = random.Random(seed)
        case = CASES[seed % len(CASES)]
        ranks = generator.randrange(2, 4 if case is call_another_unit else 5)  # of four, two differ
        stage = generator.randrange(4) if case in ANY_STAGE else 3
        print(f"seed {seed}: {case.__name__}, {ranks} ranks, stage {stage}", flush=True)
        check_errors(case, world.run_ranks(ranks, case, stage=stage, transport="shm", timeout_s=40))
