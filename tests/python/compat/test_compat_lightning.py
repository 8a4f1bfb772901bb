"""Lightning's Trainer with its DeepSpeedStrategy."""

import sys
import types

import models
import pytest
import torch
import world
from built import TESTS, ZEROSHARD, needs
from deepspeed_scripts import run

SCRIPT = str(TESTS / "scripts" / "lightning_trainer.py")


@needs(ZEROSHARD)
def test_a_trainer_trains_saves_and_continues(tmp_path):
    pytest.importorskip("lightning")
    (expected,) = run("--num_gpus", "2", SCRIPT, str(tmp_path / "ddp"), "none")
    for stage in ("2", "3"):
        (told,) = run("--num_gpus", "2", SCRIPT, str(tmp_path / stage), stage)
        assert told == [pytest.approx(each, rel=1e-4) for each in expected]


def to_device(optimizer, device):
    """What Lightning does at the end of a Trainer."""
    for state in optimizer.state.values():
        for name, value in state.items():
            state[name] = value.to(device)


def end_of_a_trainer(package):
    from zeroshard.compat import deepspeed

    module = sys.modules[f"{package}.utilities.optimizer"] = types.ModuleType("optimizer")
    module._optimizer_to_device = to_device
    config = models.configuration(3) | {"optimizer": {"type": "AdamW"}}
    engine, optimizer, *_ = deepspeed.initialize(model=models.stack(), config=config)
    numels = [param.partition_numel() for param in engine.module.parameters()]
    assert numels == [(param.numel() + 1) // 2 for param in engine.module.parameters()]
    module._optimizer_to_device(optimizer, "cpu")
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    other.param_groups[0]["params"][0].grad = torch.ones(2)
    other.step()
    module._optimizer_to_device(other, "meta")
    return all(value.is_meta for state in other.state.values() for value in state.values())


@pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric"])
def test_states_stay_where_they_are(package):
    assert world.run(2, end_of_a_trainer, package=package) == [True, True]
