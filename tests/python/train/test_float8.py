"""Linear layers that compute in fp8 (torchao), emulated on the CPU: the same bits at every stage."""

import importlib.util

import models
import pytest
import torch
import world
import zeroshard
from torch import nn

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("torchao"), reason="torchao is not installed")


def digests_of_float8_layers(dtype):
    """By stage, and last without fp8."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    found = []
    for stage, is_float8 in [(0, True), (1, True), (2, True), (3, True), (0, False)]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.GELU(), nn.Linear(64, 64, bias=False))
        if is_float8:
            convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))
        config = models.configuration(stage, dtype, optimizer=models.adamw(1e-2))
        engine, *_ = zeroshard.initialize(model=model, config=config)
        data = torch.Generator().manual_seed(world.rank())
        for _ in range(3):
            x = torch.randn(16, 64, generator=data).to(next(model.parameters()).dtype)
            engine.backward((engine(x) - x.roll(1, 1)).float().square().mean())
            engine.step()
        found.append(engine.parameter_digest())
    return found


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_float8_layers_train_with_the_same_bits_at_every_stage(dtype):
    of_ranks = world.run(2, digests_of_float8_layers, dtype=dtype, timeout_s=200)
    *float8, plain = of_ranks[0]
    assert of_ranks[1] == of_ranks[0]
    assert len(set(float8)) == 1
    assert plain != float8[0]
