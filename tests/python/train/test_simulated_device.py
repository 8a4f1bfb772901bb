"""The Python front on simulated devices: what a user does with a device, and what the simulation itself must show.

Other files have a parameter `on`, with which the tests of the CPU run on devices, too.
"""

import models
import pytest
import simulated
import torch
import world
import zeroshard
from torch import nn

pytestmark = simulated.needed
SCHEDULES = [schedule.name.lower() for schedule in simulated.Schedule]


def configuration(stage, dtype):
    return models.configuration(stage, dtype, gradient_clipping=0.5, optimizer=models.adamw(3e-3))


def train_on_streams():
    """Digests by stage: on one stream, and with forward, backward and step each on another."""
    digests, device = [], world.device()
    for stage in range(4):
        for own_streams in (False, True):
            engine, *_ = zeroshard.initialize(model=models.stack().to(device), config=configuration(stage, "bf16"))
            assert {param.device for param in engine.module.parameters()} == {device}
            for step in range(3):
                x, y = models.vectors(step, world.rank(), 2)
                with simulated.stream(device, own_streams):
                    loss = nn.functional.mse_loss(engine(x.bfloat16()).float(), y)
                with simulated.stream(device, own_streams):
                    engine.backward(loss)
                with simulated.stream(device, own_streams):
                    engine.step()
            digests.append(engine.parameter_digest())
            engine.destroy()
    return digests


@pytest.mark.parametrize("ranks,on", [*((1, schedule) for schedule in SCHEDULES), (2, "lazy"), (3, "late")])
def test_streams_of_the_users_give_the_same_bits(ranks, on):
    by_rank = world.run(ranks, train_on_streams, on=on, timeout_s=120)
    assert len({digest for digests in by_rank for digest in digests}) == 1


def train_llama(stage, checkpointing):
    """A Hugging Face model, unchanged."""
    model = models.tiny_llama()
    if checkpointing:
        model.gradient_checkpointing_enable()
    engine, *_ = zeroshard.initialize(model=model, config=configuration(stage, "bf16"))
    for step in range(3):
        ids = models.share(models.tokens(step, 0, 2 * world.size()), world.rank(), world.size())
        engine.backward(models.language_loss(engine, ids))
        engine.step()
    return engine.parameter_digest()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_model_of_hugging_face_has_one_digest(ranks):
    runs = [(stage, checkpointing, "lazy") for stage in (0, 3) for checkpointing in (False, True)]
    found = set()
    for stage, checkpointing, on in runs:
        found.update(world.run(ranks, train_llama, stage=stage, checkpointing=checkpointing, on=on, timeout_s=120))
    assert len(found) == 1


def bytes_on_the_device(stage):
    """Planned, and allocated while nothing of the script's own is there; of an engine that has trained."""
    before = simulated.allocated_bytes(world.device())
    engine, *_ = zeroshard.initialize(model=models.stack(width=40), config=configuration(stage, "bf16"))
    for step in range(2):
        x, y = models.vectors(step, world.rank(), 2, width=40)
        engine.backward(nn.functional.mse_loss(engine(x.bfloat16()).float(), y))
        engine.step()
    del x, y
    torch.accelerator.synchronize()
    report = engine.memory_report()
    planned = report["planned_total"] - report["planned"]["temporaries"]  # of a step, and gone
    return planned, simulated.allocated_bytes(world.device()) - before


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_device_holds_what_was_planned(ranks, stage):
    for planned, allocated in world.run(ranks, bytes_on_the_device, stage=stage, on="eager"):
        assert planned == allocated


def race():
    """A new stream reads what the stream before has not written yet."""
    values = torch.zeros(1000, device=world.device())
    values += 1
    with torch.Stream(world.device()):
        values.sum()


def read_early():
    """Reads at once what is copied later."""
    values = torch.ones(1000, device=world.device())
    assert values.to("cpu", non_blocking=True).sum() == 1000, "read early"


def test_the_simulation_shows_mistakes():
    for rank in world.run_ranks(2, race, on="eager"):
        assert rank.exit_code == 1 and "not ordered with the write by" in rank.error, rank
    for rank in world.run_ranks(2, read_early, on="lazy"):
        assert rank.exit_code == 1 and "read early" in rank.error, rank
