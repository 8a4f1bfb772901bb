"""Ranks of `zeroshard train` that were started with other configurations, data or models: no step is made."""

import copy
import json
import os
import re
import shutil
import subprocess

import numpy
import pytest
import world
from built import ZEROSHARD, ZEROSHARD_TORCH, needs
from train_program import (
    LENGTH,
    make,
    metrics,
    tokens,  # noqa: F401 - a fixture
    write,
)

pytestmark = needs(ZEROSHARD_TORCH)
assert tokens  # a fixture


def run_ranks(folders, configs):
    """Each rank with a configuration of its own, as where every host has its own copy."""
    port, claim = world.reserve_port()
    ranks = []
    for rank, (folder, (train, more)) in enumerate(zip(folders, configs, strict=True)):
        folder.mkdir(exist_ok=True)
        variables = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "MASTER_PORT": str(port)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = [ZEROSHARD, "train", write(folder, train, **more)]
        ranks.append(subprocess.Popen(command, env=os.environ | variables, **pipes))
    with claim:
        return [(rank.communicate(timeout=60)[0], rank.returncode) for rank in ranks]


def changed(train, path, value):
    train = copy.deepcopy(train)
    *blocks, key = path.split(".")[1:]
    block = train
    for name in blocks:
        block = block.setdefault(name, {})
    block[key] = value
    return train


@pytest.mark.parametrize(
    ("path", "value", "here", "there"),
    [
        ("train.seed", 7, "0", "7"),
        ("train.steps", 5, "3", "5"),
        ("train.data.length", 16, "32", "16"),
        ("train.data.packing", "whole", '"stream"', '"whole"'),
        ("train.data.shuffle", True, "false", "true"),
        ("train.evaluation.every", 2, "0", "2"),
        ("train.checkpoints.every", 2, "0", "2"),
        ("train.activation_checkpointing.every", 1, "0", "1"),
        ("train.lora.alpha", 4, "16.0", "4.0"),
    ],
)
def test_options_that_differ_are_named_on_every_rank(tmp_path, tokens, path, value, here, there):
    _, train = make(tmp_path, tokens, steps=3, **({"lora": {"r": 2, "alpha": 16}} if "lora" in path else {}))
    ends = run_ranks([tmp_path / "0", tmp_path / "1"], [(train, {}), (changed(train, path, value), {})])
    told = f"the ranks disagree on the configuration: on rank 0 '{path}' is {here}, on rank 1 '{path}' is {there}"
    for output, code in ends:
        assert code == 2 and told in output, ends
    assert not (tmp_path / "trained" / "model.safetensors").exists()


def test_options_that_one_rank_alone_reads_may_differ(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=2)
    ends = run_ranks([tmp_path / "0", tmp_path / "1"], [(train, {}), (train | {"log_every": 1, "seed": 0}, {})])
    assert [code for _, code in ends] == [0, 0], ends
    assert max(metrics(tmp_path)) == 2


@pytest.mark.parametrize("part", ["train", "validation"])
def test_data_that_differ_are_named_on_every_rank(tmp_path, tokens, part):
    _, train = make(tmp_path, tokens, steps=2)
    other = numpy.load(tmp_path / f"{part}.npy")
    other[LENGTH] += 1
    numpy.save(tmp_path / "other.npy", other)
    ends = run_ranks(
        [tmp_path / "0", tmp_path / "1"],
        [(train, {}), (changed(train, f"train.data.{part}", [str(tmp_path / "other.npy")]), {})],
    )
    told = (
        rf"the ranks disagree on the configuration: on rank 0 'the tokens of train.data.{part}' is {len(other)} in 1 "
    )
    for output, code in ends:
        assert code == 2 and re.search(told + r"document.*, on rank 1 .*digest", output), ends


def test_networks_that_differ_are_named_on_every_rank(tmp_path, tokens):
    _, train = make(tmp_path, tokens, steps=2)
    shutil.copytree(tmp_path / "model", tmp_path / "other")
    path = tmp_path / "other" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 0.25}))
    ends = run_ranks([tmp_path / "0", tmp_path / "1"], [(train, {}), (train | {"model": str(tmp_path / "other")}, {})])
    for output, code in ends:
        assert code == 2 and re.search(
            r"on rank 0 '(rms_norm_eps \(config.json\))' is 1e-06, on rank 1 '\1' is 0.25", output
        ), ends
