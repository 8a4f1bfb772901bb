"""Optimizers of the caller that run over flat slices: which are refused, and that their settings are their own."""

import models
import pytest
import torch
import world
import zeroshard

WHOLE = {"Adafactor": "row and column", "LBFGS": "closure", "Muon": "whole matrices", "SparseAdam": "sparse gradients"}


class Warming(torch.optim.Optimizer):
    """Elementwise, with settings that torch's own optimizers do not have: as Adan's three betas, or no rate at all."""

    def __init__(self, params):
        super().__init__(params, {"lr": None, "betas": (0.9, 0.8, 0.7), "eps": (1e-8, 1e-3), "weight_decay": "none"})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param -= group["eps"][1] * param.grad


def configuration(untested):
    return {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": untested}


def make(name, untested):
    model = models.stack()
    params = [param for param in model.parameters() if name != "Muon" or param.dim() == 2]
    optimizer = getattr(torch.optim, name)(params)
    try:
        zeroshard.initialize(model=model, optimizer=optimizer, config=configuration(untested))
    except ValueError as error:
        return str(error)
    return None


def make_all():
    names = [name for name in WHOLE if hasattr(torch.optim, name)]
    return [[name, make(name, untested)] for name in names for untested in (False, True)]


def test_optimizers_that_need_whole_parameters_are_refused_by_name():
    """Whatever the configuration allows: they would train wrongly, or fail somewhere in a step."""
    answers = world.run(1, make_all)[0]
    assert len(answers) >= 6
    for name, said in answers:
        assert said is not None, name
        assert said.startswith(f"{name} cannot run over shards: it ") and WHOLE[name] in said, said
        assert "'AdamW'" in said and "zero_allow_untested_optimizer" not in said, said


def train_with_own_settings():
    model, reference = models.stack(), models.stack()
    engine, optimizer, *_ = zeroshard.initialize(model=model, optimizer=Warming, config=configuration(True))
    theirs = Warming(reference.parameters())
    for step in range(3):
        x, y = models.vectors(step, 0, 2)
        engine.backward(torch.nn.functional.mse_loss(engine(x), y))
        engine.step()
        torch.nn.functional.mse_loss(reference(x), y).backward()
        theirs.step()
        theirs.zero_grad()
    with zeroshard.gathered(model.parameters()):
        same = [torch.equal(a, b) for a, b in zip(model.parameters(), reference.parameters(), strict=True)]
    return [all(same), optimizer.param_groups[0]["betas"]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_settings_of_an_optimizer_outside_may_be_anything(ranks):
    """Both ranks have the same data, so that the mean of their gradients is that of one."""
    assert world.run(ranks, train_with_own_settings) == [[True, [0.9, 0.8, 0.7]]] * ranks
