"""Defaults of the configuration are DeepSpeed's: a file that leaves a key out trains as it does there."""

import json
import os
import re
import subprocess
import sys

import built
import pytest
from built import TESTS

RECORDED = json.loads((TESTS / "data" / "deepspeed_defaults.json").read_text())  # what the script below prints

# Keys whose defaults differ on purpose: what is written here, and why.
DIFFERENT = {
    "zero_optimization.overlap_comm": (None, "overlap changes no bits, and is on at every stage"),
    "zero_optimization.cpu_offload": (False, "false and null mean the same"),
    "zero_optimization.cpu_offload_param": (False, "false and null mean the same"),
    "zero_optimization.leaf_module.classes": ([], "experts of transformers need no leaf modules"),
    "aio.block_size": (None, "it is chosen for the disk"),
    "aio.queue_depth": (None, "it is chosen for the disk"),
    "checkpoint.tag_validation": ("Warn", "the spelling of DeepSpeed's documentation"),
}


def defaults_here():
    """The default of each key that has one."""
    text = subprocess.run([built.ZEROSHARD, "config", "keys"], capture_output=True, text=True, check=True).stdout
    found, block = {}, ""
    for line in text.splitlines():
        if (key := re.match(r"(\s*)([\w.]+), (.+?), default (.+?): ", line)) is None:
            block = line.strip()  # a type of optimizer or scheduler
        elif key[3] != "anything" and key[4] != "required":
            found[f"{block}.{key[2]}" if key[1] else key[2]] = json.loads(key[4])
    return found


@built.needs(built.ZEROSHARD)
def test_defaults_are_deepspeeds():
    here, theirs = defaults_here(), RECORDED["defaults"]
    both = here.keys() & theirs.keys()
    assert len(both) > 130
    differing = {key: here[key] for key in both if here[key] != theirs[key]}
    assert differing == {key: value for key, (value, _) in DIFFERENT.items()}


def test_the_recorded_defaults_are_those_of_the_installed_deepspeed():
    script = [sys.executable, TESTS / "scripts" / "deepspeed_defaults.py"]
    ran = subprocess.run(script, capture_output=True, text=True, env=os.environ | {"DS_ACCELERATOR": "cpu"})
    if ran.returncode != 0:
        pytest.skip(f"DeepSpeed cannot be imported: {ran.stderr.strip().splitlines()[-1]}")
    installed = json.loads(ran.stdout.splitlines()[-1])
    if installed["version"] != RECORDED["version"]:
        pytest.skip(f"DeepSpeed {installed['version']} is installed, and the record is of {RECORDED['version']}")
    assert RECORDED["defaults"].items() <= installed["defaults"].items()
