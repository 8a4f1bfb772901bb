"""A run that is stopped after each of its steps goes on as if it had not been: dtypes, accumulation, shuffled data."""

import itertools
import os
import random

import pytest
import torch
import world
import zeroshard
from checkpointed import Dropping, configuration, facts, seed

SAMPLES = 23  # no number of ranks, and no size of a batch divides them
POWER = 19  # of the first loss scale: some steps overflow before it fits, and when it has grown again


def make_engine_and_loader(stage, dtype, accumulation):
    config = configuration(stage, dtype) | {"gradient_accumulation_steps": accumulation}
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 40
    if dtype == "fp16":
        config["fp16"] |= {"initial_scale_power": POWER, "hysteresis": 1, "loss_scale_window": 5}
    data = [(torch.tensor([index] * 3), index) for index in range(SAMPLES)]
    engine, _, loader, _ = zeroshard.initialize(model=Dropping(), config=config, training_data=data)
    return engine, loader


def micro_steps(engine, loader):
    """Endless. What a resumed run has to do alike: random numbers, data, losses, and what the steps made of them."""
    while True:
        for ids, index in loader:
            drawn = random.randrange(5)
            # Larger and smaller ones, some of which overflow while the loss scale is large.
            loss = engine((ids + drawn).repeat(2, 1)).float().square().mean() * (1 + drawn) / 100
            engine.backward(loss)
            before = engine.global_steps
            engine.step()
            made = []
            if engine.global_steps > before:
                applied = engine.was_step_applied()
                made = [applied, engine.get_global_grad_norm() if applied else None]  # checkpoints hold no norm
            made += [engine.get_lr(), engine.loss_scale, engine.global_steps]
            yield [index.tolist(), drawn, loss.item(), torch.rand(1).item(), made]


def refused_within_a_step(engine, folder):
    try:
        engine.load_checkpoint(folder)
    except zeroshard.StateError as error:
        assert "between a backward pass and its step" in str(error), error
    else:
        raise AssertionError("gradients that no step has used yet would be lost")


def whole_run(folder, stage, dtype, accumulation, steps):
    """Saves after every step, in the background, and between its micro-batches, where a load is refused."""
    engine, loader = make_engine_and_loader(stage, dtype, accumulation)
    seed(engine)
    history, ends = [], {}
    for micro in micro_steps(engine, loader):
        history.append(micro)
        if len(history) % accumulation:
            engine.save_checkpoint(folder, tag="within-a-step")
            refused_within_a_step(engine, folder)
            continue
        ends[engine.global_steps] = len(history)
        if engine.global_steps == steps:
            break
        engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    return history, ends, facts(engine)


def stop_at_each_step(folder, stage, dtype, accumulation, steps):
    """The history of a run; and at which steps one that went on from there was another."""
    history, ends, expected = whole_run(folder, stage, dtype, accumulation, steps)
    others = []
    for at in range(1, steps):
        engine, loader = make_engine_and_loader((stage + at) % 4, dtype, accumulation)
        random.seed(at)
        path, _ = engine.load_checkpoint(folder, tag=f"global_step{at}")
        assert path == os.path.join(folder, f"global_step{at}")
        rest = list(itertools.islice(micro_steps(engine, loader), len(history) - ends[at]))
        if rest != history[ends[at] :] or facts(engine) != expected:
            others.append([at, rest, facts(engine)])
    return [history, others, expected]


@pytest.mark.row("R1")
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_stopping_at_each_step(tmp_path, release, dtype, accumulation):
    stage = (accumulation + ["fp32", "bf16", "fp16"].index(dtype)) % 4  # of the whole run; others go on from it
    arguments = {"stage": stage, "dtype": dtype, "accumulation": accumulation, "steps": 40 if release else 8}
    ranks = world.run(2, stop_at_each_step, folder=str(tmp_path), timeout_s=300, **arguments)
    for history, others, expected in ranks:
        for at, rest, found in others:
            first = next((pair for pair in zip(history[-len(rest) :], rest, strict=True) if pair[0] != pair[1]), None)
            raise AssertionError(f"stage {stage}, stopped at {at} of {len(others)}: {first}, {expected}, {found}")
        skipped = [not micro[-1][0] for micro in history[accumulation - 1 :: accumulation]]
        assert len(history) > 6, "an epoch ends in between"
        assert (any(skipped) and not all(skipped)) == (dtype == "fp16"), skipped
