"""torch.profiler shows what the engine does, by unit."""

import collections

import models
import pytest
import simulated
import torch
import world
import zeroshard

WIDTH = 64  # every one of three ranks owns a part of each unit
UNITS = ["blocks.0", "blocks.1", "head"]


def profile_steps(stage, device="cpu", **more):
    """On a rank: how often each range of the engine's is there in two steps."""
    zero = {"stage": stage, **more}
    model = models.stack(width=WIDTH).to(device)
    config = models.configuration(stage, "bf16", zero_optimization=zero, optimizer=models.adamw(1e-2))
    engine, *_ = zeroshard.initialize(model=model, config=config)

    def step(number):
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number)).bfloat16().to(device)
        engine.backward(engine(x).float().square().mean())
        engine.step()

    step(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step(1)
        step(2)
    engine.destroy()
    return collections.Counter(event.name for event in profile.events() if event.name.startswith("zeroshard: "))


@pytest.mark.parametrize("stage", [2, 3])
def test_a_trace_names_every_collective_and_update(stage):
    for ranges in world.run(3, profile_steps, stage=stage):
        collected = "gather" if stage == 3 else "refresh"
        actions = ("reduce", "wait for the reduction of", "update", collected, f"wait for the {collected} of")
        for action in actions:
            assert {f"zeroshard: {action} {unit}" for unit in UNITS} <= set(ranges), (action, ranges)
        assert ranges["zeroshard: update blocks.0"] == ranges["zeroshard: reduce blocks.0"] == 2, ranges
        assert ranges["zeroshard: agree on end of backward"] == 2, ranges


def offload():
    with simulated.device(simulated.Schedule.LATE) as device:
        return profile_steps(3, device, offload_optimizer={"device": "cpu"})


@simulated.needed
def test_a_trace_names_copies_of_offload():
    (ranges,) = world.run(1, offload)
    assert {"zeroshard: copy to the host", "zeroshard: copy to the device"} <= set(ranges), ranges
