"""Models of many small units: no number of units is too large, and none takes longer because there are many."""

import models
import pytest
import torch
import world
import zeroshard
from torch import nn

WIDTH = 33  # each of two ranks owns a part of a layer


class Deep(nn.Module):
    """Many small layers, each a unit, of which a forward may leave one out."""

    def __init__(self, layers):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
        self.left_out = -1

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            if index != self.left_out:
                x = x + 0.1 * torch.tanh(layer(x))
        return x


def configuration(stage, transport="shm", threshold=0):
    blocks = {"gradient_clipping": 0.5, "optimizer": models.adamw(), "zeroshard": {"transport": transport}}
    return models.configuration(stage, threshold=threshold, **blocks)


def batch(step, engine):
    generator = torch.Generator().manual_seed(10 * step + engine.rank())
    return torch.randn(2, WIDTH, generator=generator)


def train_leaving_out_layers(engine, steps, left_out=()):
    """`left_out`: by step, the layer that its forward leaves out."""
    for step in range(steps):
        engine.module.left_out = dict(left_out).get(step, -1)
        engine.backward(engine(batch(step, engine)).square().sum())
        engine.step()


def digests_of(layers, variants, steps=2, left_out=()):
    """On a rank: trains a model of `layers` units once per variant, and reads all of it at once; the digests."""
    digests = []
    for variant in variants:
        engine, *_ = zeroshard.initialize(model=Deep(layers), config=configuration(**variant))
        initial = engine.parameter_digest()
        train_leaving_out_layers(engine, steps, left_out)
        with zeroshard.gathered(engine.module.parameters()):
            assert all(param.isfinite().all() for param in engine.module.parameters())
        assert engine.skipped_steps == 0
        digests.append(engine.parameter_digest())
        assert digests[-1] != initial
    return digests


def check(world_size, **arguments):
    results = world.run(world_size, digests_of, timeout_s=240, **arguments)
    assert len({digest for digests in results for digest in digests}) == 1, results


STAGES = [{"stage": 0}, {"stage": 1}, {"stage": 2}, {"stage": 3}, {"stage": 3, "threshold": 100_000}]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_thousand_units_train_at_every_stage(world_size):
    check(world_size, layers=1000, variants=STAGES)


def test_many_units_train_over_a_process_group():
    check(2, layers=200, variants=[variant | {"transport": "process_group"} for variant in STAGES])


def test_a_unit_that_was_gathered_ahead_and_left_out_holds_nobody_up():
    """Its gather is outstanding until backward has ended, while all others are gathered twice."""
    check(2, layers=200, variants=STAGES[3:], steps=3, left_out=[[1, 1], [2, 3]])
