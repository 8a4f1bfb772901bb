"""The Python front on a device: the simulated one, by one rank."""

import models
import pytest
import simulated
import torch
import world
import zeroshard
from torch import nn

pytestmark = pytest.mark.skipif(simulated.library() is None, reason="this build has no simulated device")
SCHEDULES = list(simulated.Schedule)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 24), Block(24), Block(24), nn.Linear(24, 4))


def configuration(stage, dtype):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        **({dtype: {"enabled": True}} if dtype != "fp32" else {}),
    }


def train(engine, device, steps, first=0):
    losses = []
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        x, y = (torch.randn(4, width, generator=generator).to(device) for width in (8, 4))
        loss = nn.functional.mse_loss(engine(x.to(engine_dtype(engine))).float(), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def engine_dtype(engine):
    return next(engine.module.parameters()).dtype


def train_every_stage(schedule, dtype):
    """On a rank: losses and digest by stage, on the device; and the losses on the CPU."""
    with simulated.device(schedule) as device:
        results = []
        for stage in range(4):
            engine, *_ = zeroshard.initialize(model=make_model().to(device), config=configuration(stage, dtype))
            assert {param.device for param in engine.module.parameters()} == {device}
            losses = train(engine, device, 4)
            memory = engine.memory_report()
            results.append([losses, engine.parameter_digest(), memory["planned"], memory["measured_peak"]])
            engine.destroy()
    engine, *_ = zeroshard.initialize(model=make_model(), config=configuration(3, dtype))
    return results, train(engine, "cpu", 4)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_one_digest_at_every_stage(schedule, dtype):
    ((results, expected),) = world.run(1, train_every_stage, schedule=schedule, dtype=dtype, timeout_s=120)
    assert len({digest for _, digest, *_ in results}) == 1
    for losses, _, planned, measured in results:
        assert losses == pytest.approx(expected, rel=1e-5 if dtype == "fp32" else 2e-2)
        assert planned == measured


def train_on_streams(schedule):
    """Digests by stage: on one stream, and with forward, backward and step each on another."""
    digests = []
    with simulated.device(schedule) as device:
        for stage in range(4):
            for own_streams in (False, True):
                engine, *_ = zeroshard.initialize(model=make_model().to(device), config=configuration(stage, "bf16"))
                for step in range(3):
                    x, y = (torch.full((4, width), 0.1 * (step + 1), device=device) for width in (8, 4))
                    with simulated.stream(device, own_streams):
                        loss = nn.functional.mse_loss(engine(x.bfloat16()).float(), y)
                    with simulated.stream(device, own_streams):
                        engine.backward(loss)
                    with simulated.stream(device, own_streams):
                        engine.step()
                digests.append(engine.parameter_digest())
                engine.destroy()
    return digests


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_streams_of_the_users_give_the_same_bits(schedule):
    (digests,) = world.run(1, train_on_streams, schedule=schedule, timeout_s=120)
    assert len(set(digests)) == 1


def save_and_load(schedule, directory):
    with simulated.device(schedule) as device:
        engine, *_ = zeroshard.initialize(model=make_model().to(device), config=configuration(3, "bf16"))
        train(engine, device, 2)
        engine.save_checkpoint(directory)
        train(engine, device, 2, first=2)
        whole = engine.parameter_digest()
        other, *_ = zeroshard.initialize(model=make_model(1).to(device), config=configuration(1, "bf16"))
        other.load_checkpoint(directory)
        train(other, device, 2, first=2)
        return whole, other.parameter_digest()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_goes_on_from_a_checkpoint(schedule, tmp_path):
    ((whole, resumed),) = world.run(1, save_and_load, schedule=schedule, directory=str(tmp_path), timeout_s=120)
    assert whole == resumed


def train_llama(stage, checkpointing):
    """A Hugging Face model, unchanged."""
    with simulated.device(simulated.Schedule.LAZY) as device:
        model = models.tiny_llama().to(device)
        if checkpointing:
            model.gradient_checkpointing_enable()
        settings = models.configuration(stage, "bf16", gradient_clipping=0.5, optimizer=models.adamw(3e-3))
        engine, *_ = zeroshard.initialize(model=model, config=settings)
        for step in range(3):
            ids = models.share(models.tokens(step, 0, 2), 0, 1)
            engine.backward(models.language_loss(engine, ids.to(device)))
            engine.step()
        return engine.parameter_digest()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_of_hugging_face_has_one_digest(checkpointing):
    digests = [world.run(1, train_llama, stage=stage, checkpointing=checkpointing, timeout_s=120) for stage in (0, 3)]
    assert digests[0] == digests[1]
