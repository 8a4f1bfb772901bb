"""load_checkpoint into a model with other names: counted and told, and refused where nothing fits."""

import models
import pytest
import torch
import world
import zeroshard
from torch import nn


class Wrapper(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


def network(changes=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.Linear(96, 48))
    if changes == "wrapped":
        return Wrapper(model)
    if changes == "another head":
        model[2] = Wrapper(nn.Linear(96, 48))
    return model


def make_network_engine(stage, changes=None):
    config = models.configuration(stage, "fp32", optimizer=models.adamw())
    return zeroshard.initialize(model=network(changes), config=config)[0]


def take_one_step(engine):
    torch.manual_seed(world.rank())
    engine.backward(engine(torch.randn(8, 64)).pow(2).mean())
    engine.step()


def load(folder, stage, changes, strict):
    engine = make_network_engine(2)
    take_one_step(engine)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    engine = make_network_engine(stage, changes)
    before = engine.parameter_digest()
    try:
        engine.load_checkpoint(folder, load_module_strict=strict, load_optimizer_states=False)
    except zeroshard.ValueError as error:
        assert engine.parameter_digest() == before and engine.global_steps == 0
        return str(error)
    return engine.global_steps


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (3, 2), (3, 3)])
def test_a_load_that_takes_nothing_is_refused(tmp_path, ranks, stage):
    for said in world.run(ranks, load, folder=str(tmp_path), stage=stage, changes="wrapped", strict=False):
        assert "the checkpoint has no parameter of this model" in said
        assert "'model.0.weight'" in said.partition("the checkpoint '")[0]
        assert "'0.weight'" in said


def test_what_a_load_takes_is_told(tmp_path):
    ranks = world.run_ranks(3, load, folder=str(tmp_path), stage=3, changes="another head", strict=False)
    assert [rank.value for rank in ranks] == [1] * 3
    assert ranks[0].log.count("the checkpoint has 4 of 6 parameters of the model") == 1, ranks[0].log
    assert "As they are stay '2.model.weight', '2.model.bias'" in ranks[0].log
    assert "Only the checkpoint has '2.weight', '2.bias'" in ranks[0].log
    assert all("parameters of the model" not in rank.log for rank in ranks[1:])


def test_a_load_of_everything_says_nothing(tmp_path):
    for rank in world.run_ranks(2, load, folder=str(tmp_path), stage=1, changes=None, strict=False):
        assert rank.value == 1
        assert "parameters of the model" not in rank.log
