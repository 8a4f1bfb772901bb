"""What lives beside an engine in its process: copies of its model, and other engines that load what it saves."""

import copy

import models
import pytest
import torch
import world
import zeroshard


def make_stack_engine(stage, seed=0):
    config = models.configuration(stage, optimizer=models.sgd(0.1))
    return zeroshard.initialize(model=models.stack(seed), config=config)[0]


def evaluate_a_copy(stage):
    """A teacher of rank 0 alone. The hooks of its original stay with the original."""
    engine = make_stack_engine(stage)
    models.train(engine, [0], models.own_loss)
    with zeroshard.gathered(list(engine.module.parameters())):
        copied = copy.deepcopy(engine.module)
        expected = engine.module(models.vectors(1, 0, 2)[0]).detach()
    same = True
    if world.rank() == 0:
        x = models.vectors(1, 0, 2)[0]
        same = torch.equal(copied(x), expected)
        copied(x).sum().backward()
        same = same and all(param.grad is not None for param in copied.parameters())
    models.train(engine, [1], models.own_loss)
    again = copy.deepcopy(copied)
    engine.destroy()
    return same and torch.equal(again(models.vectors(1, 0, 2)[0]), copied(models.vectors(1, 0, 2)[0]))


@pytest.mark.parametrize("ranks,stage", [(1, 1), (2, 2), (2, 3), (3, 3)])
def test_one_rank_alone_computes_with_a_copy(ranks, stage):
    assert world.run(ranks, evaluate_a_copy, stage=stage) == [True] * ranks


def load_what_another_saves(stage, folder):
    """Digests of what was saved, and of what another engine loads at once: the first save there, and the same tag."""
    saving, loading = make_stack_engine(stage), make_stack_engine(stage, seed=1)
    pairs = []
    for step in range(4):
        models.train(saving, [step], models.own_loss)
        digest = saving.parameter_digest()
        saving.save_checkpoint(folder, tag="same")
        path, _ = loading.load_checkpoint(folder)
        pairs.append([path is not None, loading.parameter_digest() == digest])
    saving.destroy()
    loading.destroy()
    return pairs


@pytest.mark.parametrize("ranks,stage", [(1, 1), (2, 2), (2, 3)])
def test_another_engine_loads_a_save_that_is_under_way(tmp_path, ranks, stage):
    for pairs in world.run(ranks, load_what_another_saves, stage=stage, folder=str(tmp_path)):
        assert pairs == [[True, True]] * 4
