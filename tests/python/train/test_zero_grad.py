"""What ``zero_grad()`` discards, and steps that no backward came before."""

import copy
import math

import models
import pytest
import torch
import world
import zeroshard
from test_failed_steps import Fault, configuration, plant

CLEARERS = {"engine": lambda engine: engine.zero_grad(), "optimizer": lambda engine: engine.optimizer.zero_grad()}


def batch(step, micro=0):
    return (models.share(each, world.rank(), world.size()) for each in models.vectors(step, micro, 8))


def loss_of_micro_batch(engine, step, micro=0):
    x, y = batch(step, micro)
    return torch.nn.functional.mse_loss(engine(x), y)


def pytorch_norm(model, step):
    x, y = models.vectors(step, 0, 8)
    torch.nn.functional.mse_loss(model(x), y).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf).item()


def discard(stage, by, how):
    """The norms of a step after a backward that was discarded, here and in PyTorch."""
    reference = copy.deepcopy(model := models.stack())
    engine, *_ = zeroshard.initialize(model=model, config=configuration(stage))
    if how == "raised":  # in a backward that the engine does not see
        take_away = plant(model, "gradient")
        with pytest.raises(Fault):
            loss_of_micro_batch(engine, 0).backward()
        take_away()
    elif how == "plain":
        loss_of_micro_batch(engine, 0).backward()
    else:
        engine.backward(loss_of_micro_batch(engine, 0))
    CLEARERS[by](engine)
    engine.backward(loss_of_micro_batch(engine, 1))
    engine.step()
    engine.zero_grad()
    return engine.get_global_grad_norm(), pytorch_norm(reference, 1), engine.global_steps


@pytest.mark.parametrize("how", ["raised", "plain", "engine"])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_what_was_discarded_is_in_no_step(stage, how):
    by = "optimizer" if stage == 2 else "engine"
    for norm, expected, steps in world.run(2, discard, stage=stage, by=by, how=how):
        assert (norm, steps) == (pytest.approx(expected, rel=1e-5), 1)


def discard_within_a_step():
    """Norms of a step whose first micro-batch was discarded and that began again, and of one that did not."""
    norms = []
    for discards in (True, False):
        engine, *_ = zeroshard.initialize(model=models.stack(), config=configuration(2, micro_batches=2))
        if discards:
            engine.backward(loss_of_micro_batch(engine, 9))
            engine.step()
            engine.zero_grad()
        for micro in range(2):
            engine.backward(loss_of_micro_batch(engine, 0, micro))
            engine.step()
        norms.append(engine.get_global_grad_norm())
        norms.append([engine.global_steps, engine.micro_steps, engine.global_samples])
    return norms


def test_a_step_of_several_micro_batches_begins_again():
    ranks = world.run_ranks(2, discard_within_a_step)
    for rank in ranks:
        assert rank.error is None, rank.log
        assert rank.value[:2] == rank.value[2:] and rank.value[3] == [1, 2, 8]
    assert "zero_grad() discarded the gradients of 1 micro-batch(es) of a step of 2" in ranks[0].log


def discard_alone(stage, plain):
    """What a step says when rank 1 alone has discarded; then both begin it again."""
    reference = copy.deepcopy(model := models.stack())
    engine, *_ = zeroshard.initialize(model=model, config=configuration(stage))
    loss = loss_of_micro_batch(engine, 0)
    loss.backward() if plain else engine.backward(loss)
    if world.rank() == 1:
        engine.zero_grad()
    with pytest.raises(zeroshard.StateError) as error:
        engine.step()
    text = str(error.value)
    engine.zero_grad()
    engine.backward(loss_of_micro_batch(engine, 1))
    engine.step()
    return text, engine.get_global_grad_norm(), pytorch_norm(reference, 1)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("plain", [False, True])
def test_a_rank_that_discards_alone_is_named(stage, plain):
    (text, *_), (other, *_) = ranks = world.run(2, discard_alone, stage=stage, plain=plain)
    assert "rank 0 has some" in text and "rank 1 has none" in other
    assert all(norm == pytest.approx(expected, rel=1e-5) for _, norm, expected in ranks)


def step_without_backward(stage, overflow):
    config = configuration(stage, "fp16" if overflow else "fp32")
    engine, *_ = zeroshard.initialize(model=models.stack(), config=config)

    def step(scale=1.0, backward=True):
        if backward:
            x, y = batch(0)
            x = x.to(torch.half) if overflow else x
            engine.backward(torch.nn.functional.mse_loss(engine(x).float(), y) * scale)
        engine.step()
        return [engine.get_global_grad_norm(), engine.was_step_applied(), engine.skipped_steps, engine.loss_scale]

    first = step(scale=float("inf") if overflow else 1.0)
    before = engine.parameter_digest()
    empty = step(backward=False)
    return first[1:], empty, engine.parameter_digest() == before, engine.global_steps


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("size", [1, 2])
def test_a_step_without_a_backward_says_nothing_of_the_one_before(size, stage):
    for first, empty, unchanged, steps in world.run(size, step_without_backward, stage=stage, overflow=False):
        assert (first, empty, unchanged, steps) == ([True, 0, 1.0], [0.0, True, 0, 1.0], True, 2)
    for first, empty, unchanged, steps in world.run(size, step_without_backward, stage=stage, overflow=True):
        assert first[:2] == [False, 1]
        assert (empty, unchanged, steps) == ([0.0, True, 1, first[2]], True, 2)
