"""Leaf modules without a forward: lists of modules that are one unit."""

import models
import pytest
import torch
import world
import zeroshard
from test_compat_zero import HIDDEN, Block
from torch import nn
from zeroshard.compat import leaf_modules


class Experts(nn.Module):
    """Uses the elements of a list that it has, some of them not at all, and a parameter of its own."""

    def __init__(self, width=HIDDEN):
        super().__init__()
        self.list = nn.ModuleList([nn.ModuleList([nn.Linear(width, width), Block(width)]) for _ in range(3)])
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        for linear, block in list(self.list)[: 1 + world.rank() % 2]:
            x = x + block(linear(x)) * self.scale
        return x


def _experts(leaf):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), Experts(), nn.Linear(HIDDEN, HIDDEN))
    if leaf:
        leaf_modules.set_z3_leaf_modules(model, [nn.ModuleList])
    units = {unit.name: (len(unit.modules), unit.parent) for unit in zeroshard.find_units(model)}
    engine, *_ = zeroshard.initialize(model=model, config=models.configuration(3, optimizer=models.adamw()))
    names = [unit.name for unit in engine._run.units]
    for step in range(3):
        torch.manual_seed(step)
        engine.backward(engine(torch.rand(2, HIDDEN)).square().mean())
        engine.step()
    return units, names, engine.parameter_digest()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_list_of_modules_is_one_unit(ranks):
    """It is whole while the forward around it runs, and computes what it would without it."""
    leaves, plain = (world.run(ranks, _experts, leaf=leaf) for leaf in (True, False))
    for units, names, digest in leaves:
        assert list(units) == names and "1.list" in names and not any(name.startswith("1.list.") for name in names)
        assert digest == plain[0][2]
