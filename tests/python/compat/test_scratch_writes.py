"""Writes inside ``deepspeed.zero.GatheredParameters`` without a modifier_rank, such as adapters that are merged."""

import models
import pytest
import torch
import world
import zeroshard
from torch import nn
from zeroshard.compat import zero


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(300, 300)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(300, 8, bias=False), nn.Linear(8, 300, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))

    def merge(self):
        self.base.weight.data += self.up.weight @ self.down.weight


def make_adapted_engine(stage, dtype, threshold=0):
    config = models.configuration(stage, dtype, threshold=threshold, optimizer=models.adamw())
    return zeroshard.initialize(model=Adapted(), config=config)[0]


def train_adapter(engine, step):
    torch.manual_seed(10 * step + world.rank())
    engine.backward(engine(torch.randn(2, 300).to(engine.module.base.weight.dtype)).float().pow(2).mean())
    engine.step()


def base_of(engine):
    with zeroshard.gathered(engine.module.parameters()):
        return engine.module.base.weight.detach().float().clone()


def merge(stage, dtype, threshold):
    engines = [make_adapted_engine(stage, dtype, threshold) for _ in range(2)]
    merging, plain = engines
    for step in range(3):
        for engine in engines:
            train_adapter(engine, step)
        before = base_of(merging)
        with torch.no_grad(), zero.GatheredParameters(list(merging.module.parameters())):
            merging.module.merge()
            merging.module.up.weight.mul_(2)  # a parameter that is trained, and a write that PyTorch counts
            merged = merging.module.base.weight.float().clone()
        assert not torch.equal(merged, before)
        assert torch.equal(base_of(merging), before if stage == 3 else merged)
        if stage < 3:
            return
    with zero.GatheredParameters(merging.module.up.weight):
        merging.module.up.weight.data = torch.zeros(300, 8, dtype=merging.module.up.weight.dtype)
    assert merging.parameter_digest() == plain.parameter_digest()
    train_adapter(merging, 3)
    train_adapter(plain, 3)
    assert merging.parameter_digest() == plain.parameter_digest()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("ranks", "stage", "threshold"), [(1, 0, 0), (1, 3, 0), (3, 2, 0), (3, 3, 0), (3, 3, 10**6)], ids=str
)
def test_writes_without_a_modifier_rank_are_dropped_at_stage_3(ranks, stage, threshold, dtype):
    world.run(ranks, merge, stage=stage, dtype=dtype, threshold=threshold)


def step_inside(threshold):
    engine, other = make_adapted_engine(3, "bf16", threshold), make_adapted_engine(3, "bf16", threshold)
    with zero.GatheredParameters(list(engine.module.parameters())):
        train_adapter(engine, 0)
    train_adapter(other, 0)
    assert engine.parameter_digest() == other.parameter_digest()


@pytest.mark.parametrize("threshold", [0, 10**6])
def test_a_step_inside_stays(threshold):
    world.run(2, step_inside, threshold=threshold)


def write_natively():
    engine = make_adapted_engine(3, "fp32")
    refused = pytest.raises(zeroshard.StateError, match="'base.weight' was written inside zeroshard.gathered")
    with refused, zeroshard.gathered(engine.module.parameters()):
        engine.module.merge()


def test_natively_it_is_an_error():
    world.run(2, write_natively)
