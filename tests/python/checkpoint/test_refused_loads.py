"""load_checkpoint: what it can refuse is refused before it writes anything, and buffers are loaded of whatever kind."""

import models
import pytest
import torch
import world
import zeroshard
from torch import nn
from torch.optim import lr_scheduler


class Network(nn.Module):
    def __init__(self, buffer):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(600, 4)
        self.register_buffer("scale", buffer)

    def forward(self, x):
        return self.layer(x) + self.scale.to_dense()


SCHEDULERS = {
    None: None,
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 3),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
}


def make_engine_with_buffer(stage, buffer, scheduler=None, dtype="fp32"):
    config = models.configuration(stage, dtype, optimizer=models.adamw())
    return zeroshard.initialize(model=Network(buffer), config=config, lr_scheduler=SCHEDULERS[scheduler])[0]


def take_one_step(engine):
    torch.manual_seed(world.rank())
    engine.backward(engine(torch.randn(2, 600).to(engine.module.layer.weight.dtype)).float().pow(2).mean())
    engine.step()


def buffer_of(kind, value):
    if kind == "expanded":
        return torch.full((1,), value).expand(4)
    if kind == "inference":
        with torch.inference_mode():
            return torch.full((4,), value)
    return torch.full((4,), value, requires_grad=kind == "gradient")


def load_buffer(folder, stage, kind, dtype):
    engine = make_engine_with_buffer(stage, buffer_of(kind, 3.0), dtype=dtype)
    take_one_step(engine)
    saved = engine.parameter_digest()
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    engine = make_engine_with_buffer(
        stage, buffer_of(kind, 1.0 + world.rank()), dtype=dtype
    )  # initialize takes rank 0's
    first = engine.module.scale.tolist()
    engine.load_checkpoint(folder)
    take_one_step(engine)
    assert engine.global_steps == 2
    return [first, engine.module.scale.tolist(), engine.module.scale.requires_grad, saved == engine.parameter_digest()]


@pytest.mark.parametrize("kind", ["expanded", "inference", "gradient"])
@pytest.mark.parametrize(("ranks", "stage", "dtype"), [(1, 0, "fp32"), (3, 2, "bf16"), (3, 3, "fp32")])
def test_buffers_that_torch_does_not_write_to_are_loaded(tmp_path, ranks, stage, dtype, kind):
    for result in world.run(ranks, load_buffer, folder=str(tmp_path), stage=stage, kind=kind, dtype=dtype):
        assert result == [[1.0] * 4, [3.0] * 4, kind == "gradient", False]


def refused(folder, stage, saves, loads):
    buffers = {
        "whole numbers": lambda: torch.ones(4, dtype=torch.int64),
        "sparse": lambda: torch.eye(4)[0].to_sparse(),
    }
    engine = make_engine_with_buffer(
        stage, buffers.get(saves, lambda: torch.ones(4))(), saves if saves in SCHEDULERS else None
    )
    take_one_step(engine)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    engine = make_engine_with_buffer(
        stage, buffers.get(loads, lambda: torch.ones(4))(), loads if loads in SCHEDULERS else None
    )
    before = engine.parameter_digest(), engine.lr_scheduler and engine.lr_scheduler.state_dict(), engine.get_lr()
    with pytest.raises(zeroshard.ValueError) as error:
        engine.load_checkpoint(folder)
    after = engine.parameter_digest(), engine.lr_scheduler and engine.lr_scheduler.state_dict(), engine.get_lr()
    assert after == before
    take_one_step(engine)
    return str(error.value)


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (3, 3)])
@pytest.mark.parametrize(
    ("saves", "loads", "message"),
    [
        ("whole numbers", None, "'scale' (buffer) has the dtype F32, in the checkpoint I64"),
        (None, "sparse", "buffer 'scale' is float32 and sparse_coo"),
        ("StepLR", "LambdaLR", "the lr_scheduler LambdaLR cannot load the checkpoint's state (KeyError: 'lr_lambdas')"),
    ],
)
def test_a_refused_load_changes_nothing(tmp_path, ranks, stage, saves, loads, message):
    for said in world.run(ranks, refused, folder=str(tmp_path), stage=stage, saves=saves, loads=loads):
        assert message in said


def save_without_a_shape(folder):
    engine = make_engine_with_buffer(2, nn.parameter.UninitializedBuffer())
    with pytest.raises(zeroshard.ValueError, match="buffer 'scale' has no shape yet"):
        engine.save_checkpoint(folder)


def test_a_buffer_without_a_shape_is_named(tmp_path):
    world.run(2, save_without_a_shape, folder=str(tmp_path))
