"""Which offload a run can have: engine, planner and explanation give one answer to every combination of its keys."""

import itertools
import json
import random
import subprocess

import models
import pytest
import simulated
import world
import zeroshard
from built import ZEROSHARD, needs

pytestmark = [needs(ZEROSHARD), simulated.needed]

FILE = {"device": "nvme", "nvme_path": "/tmp"}  # files have no names there
PLACES = {"none": {"device": "none"}, "cpu": {"device": "cpu"}, "nvme": FILE, "auto": FILE | {"device": "auto"}}
COMBINATIONS = [
    {
        "zero_optimization": {"stage": stage, "offload_optimizer": PLACES[states] | {"ratio": ratio}}
        | {"offload_param": PLACES[parameters]},
        "zeroshard": {"offload": {"gradients": gradients, "moment_dtype": moments, "delayed_update": late}},
    }
    for stage, states, ratio, parameters, gradients, moments, late in itertools.product(
        range(4), PLACES, (0, 0.5, 1), PLACES, ("auto", "device", "cpu", "nvme"), ("fp32", "bf16"), (False, True)
    )
]


def as_blocks(keys):
    return keys | {"dtype": "bf16", "optimizer": models.adamw(1e-3), "stage": keys["zero_optimization"]["stage"]}


def answers(combinations):
    """What an engine says of each: "" where it is made."""
    told = []
    for keys in combinations:
        model = models.stack().to(world.device())
        try:
            engine = zeroshard.initialize(model=model, config=models.configuration(**as_blocks(keys)))[0]
        except zeroshard.ConfigError as error:
            told.append(str(error))
        else:
            engine.destroy()
            told.append("")
    return told


def program(*args):
    return subprocess.run([ZEROSHARD, *map(str, args)], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("where", ["GPU", "CPU"])
def test_engine_planner_and_explanation_agree(tmp_path, where):
    chosen = random.Random(20).sample(COMBINATIONS, 120)
    on = {"on": "lazy"} if where == "GPU" else {}
    (of_engine,) = world.run(1, answers, combinations=chosen, timeout_s=240, **on)
    assert 20 < sum(map(bool, of_engine)) < 110  # both happen often
    config = tmp_path / "ds.json"
    for keys, said in zip(chosen, of_engine, strict=True):
        config.write_text(json.dumps(models.configuration(**as_blocks(keys))))
        explained = program("config", "explain", config, "--json")
        assert explained.returncode == 0, explained.stderr
        assert json.loads(explained.stdout)["refused"].get(where, "") == said, keys
        plan = program("plan", "--params", "1e6", "--world-size", 1, "--config", config, *["--gpu"] * len(on))
        if where == "GPU":
            assert plan.returncode == (2 if said else 0) and said in plan.stderr, (keys, said, plan.stderr)
        elif "planned for ranks on the CPU" in plan.stdout:  # the planner chooses the kind of rank
            assert not said, (keys, said)


def test_stage_0_is_told_as_the_reason(tmp_path):
    config = tmp_path / "ds.json"
    host = {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}
    config.write_text(json.dumps({"train_batch_size": 1, "zeroshard": {"offload": {"gradients": "cpu"}}} | host))
    said = program("plan", "--params", "1e6", "--world-size", 1, "--config", config, "--gpu").stderr
    assert 'zeroshard.offload.gradients = "cpu": ' in said and '"none"' not in said, said
    assert "zero_optimization.stage is 0, where zero_optimization.offload_optimizer has no effect: set stage to" in said
