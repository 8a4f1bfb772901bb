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


class Muon(torch.optim.Optimizer):
    """Not torch's, which the core runs."""

    def step(self, closure=None):
        raise NotImplementedError


def error_of_initialize(name, untested):
    model = models.stack()
    params = [param for param in model.parameters() if name != "Muon" or param.dim() == 2]
    optimizer = Muon(params, {}) if name == "Muon" else getattr(torch.optim, name)(params)
    try:
        zeroshard.initialize(
            model=model, optimizer=optimizer, config=models.configuration(0, zero_allow_untested_optimizer=untested)
        )
    except ValueError as error:
        return str(error)
    return None


def make_all():
    names = [name for name in WHOLE if hasattr(torch.optim, name) or name == "Muon"]
    return [[name, error_of_initialize(name, untested)] for name in names for untested in (False, True)]


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
    engine, optimizer, *_ = zeroshard.initialize(
        model=model, optimizer=Warming, config=models.configuration(0, zero_allow_untested_optimizer=True)
    )
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


def discard_by_the_own_optimizer(name, stage):
    """The digests of a run that discards a batch by the optimizer that was passed, and of one without that batch."""
    digests = []
    for discards in (True, False):
        model = models.stack()
        own = getattr(torch.optim, name)(model.parameters(), lr=0.05)
        engine = zeroshard.initialize(model=model, optimizer=own, config=models.configuration(stage))[0]
        for step in range(3):
            if discards and step == 1:
                engine.backward(models.own_loss(engine, 9))
                own.zero_grad(set_to_none=True)
            engine.backward(models.own_loss(engine, step))
            engine.step()
        digests.append(engine.parameter_digest())
    return digests


@pytest.mark.parametrize("name", ["AdamW", "RMSprop"])
@pytest.mark.parametrize("ranks,stage", [(1, 0), (2, 1), (2, 3)])
def test_zero_grad_of_the_optimizer_that_was_passed_discards(ranks, stage, name):
    for first, second in world.run(ranks, discard_by_the_own_optimizer, name=name, stage=stage):
        assert first == second


def use_the_own_optimizer(name, end):
    """What its methods say while an engine has it; and whether they are the plain ones afterwards."""
    model = models.stack()
    own = getattr(torch.optim, name)(model.parameters(), lr=0.05)
    own.zero_grad = lambda set_to_none=True: called.append("own")  # its own already, and so again afterwards
    called, empty = [], own.state_dict()
    config = models.configuration(0)
    engine = zeroshard.initialize(model=model, optimizer=own, config=config)[0]
    engine.backward(models.own_loss(engine, 0))
    engine.step()
    extra = {"params": [torch.nn.Parameter(torch.ones(1))]}
    said = []
    for call in (own.state_dict, lambda: own.load_state_dict(empty), lambda: own.add_param_group(extra)):
        with pytest.raises(ValueError) as error:
            call()
        said.append(str(error.value))
    own.zero_grad()
    assert called == []
    if end == "destroy":
        engine.destroy()
    else:
        zeroshard.initialize(model=model, config=config)
    own.zero_grad()
    own.load_state_dict(own.state_dict())
    own.add_param_group(extra)
    return [said, called, len(own.param_groups), "_zeroshard_owner" in vars(own)]


@pytest.mark.parametrize("end", ["destroy", "take over"])
@pytest.mark.parametrize("name", ["AdamW", "RMSprop"])
def test_methods_of_the_optimizer_that_was_passed(name, end):
    ((said, called, groups, marked),) = world.run(1, use_the_own_optimizer, name=name, end=end)
    assert "engine.save_checkpoint" in said[0] and "pass them all to zeroshard.initialize" in said[2]
    assert "engine.load_checkpoint" in said[1] and "before zeroshard.initialize" in said[1]
    assert (called, groups, marked) == (["own"], 2, False)
