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


def answers(combinations, on_device):
    """What an engine says of each: "" where it is made."""
    told = []
    for keys in combinations:
        config = models.configuration(keys["zero_optimization"]["stage"], **models_keys(keys))
        model = models.stack()
        try:
            engine = zeroshard.initialize(model=model.to(world.device()) if on_device else model, config=config)[0]
        except zeroshard.ConfigError as error:
            told.append(str(error))
        else:
            engine.destroy()
            told.append("")
    return told


def models_keys(keys):
    return keys | {"bf16": {"enabled": True}, "optimizer": models.adamw(1e-3)}


def program(*args):
    return subprocess.run([ZEROSHARD, *map(str, args)], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.idle_ranks("engines are made and ended")
@pytest.mark.parametrize("where", ["GPU", "CPU"])
def test_engine_planner_and_explanation_agree(tmp_path, where, request):
    on_device = where == "GPU"
    seed = 20
    chosen = random.Random(seed).sample(COMBINATIONS, 120)
    (of_engine,) = world.run(1, answers, chosen, on_device, timeout_s=240, **({"on": "lazy"} if on_device else {}))
    assert 20 < sum(map(bool, of_engine)) < 110  # both happen often
    config = tmp_path / "ds.json"
    planned = 0
    for keys, said in zip(chosen, of_engine, strict=True):
        config.write_text(json.dumps({"train_batch_size": 1} | models_keys(keys)))
        explained = program("config", "explain", config, "--json")
        assert explained.returncode == 0, explained.stderr
        assert json.loads(explained.stdout)["refused"].get(where, "") == said, keys
        plan = program(
            "plan", "--params", "1e6", "--world-size", 1, "--config", config, "--json", *["--gpu"] * on_device
        )
        # Without --gpu, the planner chooses the CPU where it must.
        if not on_device and plan.returncode == 0 and not any("ranks on the CPU" in n for n in notes_of(plan)):
            continue
        planned += 1
        assert (plan.returncode == 2) == bool(said) or not on_device, (keys, said, plan.stderr)
        if on_device and said:
            assert said in plan.stderr, (keys, said, plan.stderr)
        if not on_device and plan.returncode == 0:
            assert said == "", (keys, said)
    assert planned > 20


def notes_of(plan):
    return json.loads(plan.stdout)["notes"]


def test_stage_0_is_told_as_the_reason(tmp_path):
    config = tmp_path / "ds.json"
    host = {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}
    config.write_text(json.dumps({"train_batch_size": 1, "zeroshard": {"offload": {"gradients": "cpu"}}} | host))
    said = program("plan", "--params", "1e6", "--world-size", 1, "--config", config, "--gpu").stderr
    assert 'zeroshard.offload.gradients = "cpu": ' in said and '"none"' not in said, said
    assert "zero_optimization.stage is 0, where zero_optimization.offload_optimizer has no effect: set stage to" in said
