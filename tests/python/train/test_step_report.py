"""What rank 0 logs every steps_per_print steps; and the note on inputs in another dtype."""

import re
import time

import models
import pytest
import torch
import world
import zeroshard
from torch import nn


def train_with_lines(every, accumulation):
    config = models.configuration(2, "fp32", optimizer=models.adamw(1e-3))
    config |= {"steps_per_print": every, "gradient_accumulation_steps": accumulation}
    config["train_micro_batch_size_per_gpu"] = 2
    engine, *_ = zeroshard.initialize(model=models.tiny_llama(), config=config)
    return [models.take_step(engine, step, accumulation) for step in range(4)]


def lines_of(ranks):
    return [[line for line in rank.log.splitlines() if "step=" in line] for rank in ranks]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_line_has_loss_and_pace(accumulation):
    ranks = world.run_ranks(2, train_with_lines, every=2, accumulation=accumulation)
    lines, others = lines_of(ranks)
    assert others == []
    assert len(lines) == 2
    for line, step in zip(lines, (2, 4), strict=True):
        fields = dict(re.findall(r"([\w/]+)=(\[[^\]]*\]|[^,]+)", line))
        assert fields["step"] == str(step)
        assert float(fields["loss"]) == pytest.approx(ranks[0].value[step - 1], rel=1e-3)
        samples, tokens = float(fields["samples/s"]), float(fields["tokens/s"])
        assert tokens == pytest.approx(9 * samples, rel=1e-2)  # tokens a sample
        seconds = float(fields["step_time"].removesuffix(" s"))
        assert samples * seconds == pytest.approx(2 * 2 * accumulation, rel=2e-2)
        assert float(fields["peak_memory"].removesuffix(" MB")) > 10
        assert {"lr", "grad_norm", "skipped"} <= fields.keys()


def train_with_parts(accumulation):
    config = models.configuration(2, "fp32", optimizer=models.adamw(1e-3))
    config |= {"steps_per_print": 2, "wall_clock_breakdown": True, "gradient_accumulation_steps": accumulation}
    engine, *_ = zeroshard.initialize(model=models.tiny_llama(), config=config)
    for step in range(4):
        time.sleep(0.05)
        models.take_step(engine, step, accumulation)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_breakdown_tells_where_the_time_of_a_step_went(accumulation):
    lines, others = lines_of(world.run_ranks(2, train_with_parts, accumulation=accumulation))
    assert (len(lines), others) == (2, [])
    for line in lines:
        seconds = {name: float(text) for name, text in re.findall(r"(\w+)=([\d.e-]+) s\b", line)}
        parts = [seconds.pop(name) for name in ("forward", "backward", "step", "other")]
        assert min(parts) > 0 and parts[-1] >= 0.05
        assert sum(parts) == pytest.approx(seconds["step_time"], rel=2e-2)


def test_without_the_key_nothing_is_printed():
    assert lines_of(world.run_ranks(1, train_with_lines, every=0, accumulation=1)) == [[]]


def give_fp32_images(dtype, auto_cast):
    config = models.configuration(3, dtype, optimizer=models.adamw())
    config[dtype]["auto_cast"] = auto_cast
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 8))
    engine, *_ = zeroshard.initialize(model=model, config=config)
    images = torch.ones(2, 3, 8, 8)
    if auto_cast:
        engine.backward(engine(images).float().sum())
        engine.step()
        return None
    with pytest.raises(RuntimeError) as caught:
        engine(images)
    notes = list(getattr(caught.value, "__notes__", []))
    engine.backward(engine(images.to(next(model.parameters()).dtype)).float().sum())
    engine.step()
    return notes


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_fp32_inputs_are_cast_on_request_and_explained_otherwise(dtype):
    for (note,) in world.run(2, give_fp32_images, dtype=dtype, auto_cast=False):
        assert f"set {dtype}.auto_cast" in note
    assert world.run(2, give_fp32_images, dtype=dtype, auto_cast=True) == [None, None]
