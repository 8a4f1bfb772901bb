"""The check that every rank of a world owns a part of a test's model."""

import models
import owners
import pytest
import torch
import world
import zeroshard


def shard(numel):
    """How many elements this rank owns of one unit."""
    model = torch.nn.Linear(numel, 1, bias=False)
    engine, *_ = zeroshard.initialize(model=model, config=models.configuration(optimizer=models.sgd(0.1)))
    return sum(part.master.numel() for part in engine._run.core.slices())


def shard_frozen():
    model = torch.nn.Linear(5, 1).requires_grad_(False)
    zeroshard.initialize(model=model, config=models.configuration())


def shard_and_fail():
    shard(5)
    raise RuntimeError("after the engine was made")


@pytest.mark.idle_ranks("counts owners of units of every size")
@pytest.mark.parametrize("numel", [1, 1024, 1025, 2048, 2049, 3072, 4000])
def test_owners_are_those_of_the_engine(numel):
    owned = world.run(3, shard, numel=numel)
    assert sum(owned) == numel
    assert sum(mine > 0 for mine in owned) == owners.owners(numel, 3)


def test_a_rank_that_owns_nothing_fails_the_test():
    with pytest.raises(AssertionError, match="rank 1 of 2 owns no trainable element of Linear, whose .* has 5:"):
        world.run(2, shard, numel=5)
    with pytest.raises(AssertionError, match="more than 2048 and at most 3072 elements"):
        world.run(3, shard, numel=2048)
    assert sum(world.run(2, shard, numel=1025)) == 1025


def test_a_failure_that_a_test_expects_hides_none():
    with pytest.raises(AssertionError, match="owns no trainable element"):
        world.run_ranks(2, shard_and_fail)


def test_nothing_is_asked_of_one_rank_and_of_frozen_models():
    assert world.run(1, shard, numel=5) == [5]
    world.run(2, shard_frozen)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_stacks_are_large_enough(ranks):
    for width in (8, 10, 24, 32):
        assert owners.complaint("", owners.numels_of(zeroshard.find_units(models.stack(width=width))), ranks) is None
