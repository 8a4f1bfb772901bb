"""Several replicas of the states (zeroshard.mesh.shard): readers of gradients, quantized sums, ranks that differ."""

import models
import pytest
import torch
import world
import zeroshard
from torch import nn


class Branches(nn.Module):
    """A model whose second branch only some ranks use."""

    def __init__(self, uses_both):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(10, 5), nn.Linear(10, 5)
        self.uses_both = uses_both

    def forward(self, x):
        return self.first(x) + (self.second(x) if self.uses_both else 0)


def gradients_of_a_branch(stage, shard):
    model = Branches(uses_both=world.rank() < 2)
    config = models.configuration(stage, optimizer=models.adamw(), zeroshard={"mesh": {"shard": shard}})
    engine, *_ = zeroshard.initialize(model=model, config=config)
    engine.backward(models.part_loss(engine, 0))
    gradient = zeroshard.get_gradient(model.second.weight)
    return [gradient.tolist(), zeroshard.get_gradient_norms(model)]


@pytest.mark.idle_ranks("it compares what ranks show, whoever owns it")
@pytest.mark.parametrize("stage", [0, 2])
def test_a_gradient_of_one_replicas_ranks_is_shown_on_all(stage):
    of_ranks = world.run(4, gradients_of_a_branch, stage=stage, shard=2)
    assert all(each == of_ranks[0] for each in of_ranks)
    assert of_ranks == world.run(4, gradients_of_a_branch, stage=stage, shard=4)
    assert "second.weight" in of_ranks[0][1]


def error_of_another_mesh(shards):
    own = {"mesh": {"shard": shards[world.rank()]}, "timeout_s": 30}
    with pytest.raises(zeroshard.CommError) as caught:
        zeroshard.initialize(model=nn.Linear(8, 8), config=models.configuration(3, zeroshard=own))
    return str(caught.value)


@pytest.mark.parametrize("shards", [[2, 2, 1, 2], [2, None, None, None]])
def test_ranks_that_ask_for_other_replicas_are_told_so(shards):
    for error in world.run(4, error_of_another_mesh, shards=shards):
        assert "2 rank(s) for each replica of the states" in error, error


def losses(quantized, seed):
    """Of a model that learns the values of another one."""
    torch.manual_seed(seed)
    teacher, model = nn.Linear(24, 8), nn.Sequential(nn.Linear(24, 140), nn.GELU(), nn.Linear(140, 8))
    zero = {"zero_quantized_gradients": quantized}
    config = models.configuration(
        2, optimizer=models.adamw(3e-3), zero_optimization=zero, zeroshard={"mesh": {"shard": 2}}
    )
    engine, *_ = zeroshard.initialize(model=model, config=config)
    data = torch.Generator().manual_seed(world.rank())
    found = []
    for _ in range(150):
        x = torch.randn(16, 24, generator=data)
        loss = nn.functional.mse_loss(engine(x), teacher(x).detach())
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return sum(found[-20:])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_quantized_sums_of_gradients_train_as_well(seed):
    exact, coded = (sum(world.run(4, losses, quantized=each, seed=seed)) for each in (False, True))
    assert coded != exact
    assert coded == pytest.approx(exact, rel=0.01)
