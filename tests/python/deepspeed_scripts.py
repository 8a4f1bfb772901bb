"""Scripts that import deepspeed, and what their ranks tell."""

import json
import os
import subprocess
import sys

import pytest
import warm
from built import ZEROSHARD
from launched import environment
from zeroshard.compat import alias

CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
TELL = """
def tell(*values):
    print("\\nTOLD " + json.dumps(values, default=str))
"""


def called(*command, path=True, **variables):
    """What the ranks of a command told, sorted."""
    known = os.environ.get("PYTHONPATH", "")
    first = {"PYTHONPATH": f"{alias.PATH}:{known}"} if path else {}
    env = environment(VIRTUAL_ENV=warm.environment(), **first, **variables)
    env["PATH"] = f"{alias.BIN}:{ZEROSHARD.parent}:{os.path.dirname(sys.executable)}:{env['PATH']}"
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.partition("TOLD ")[2] for line in done.stdout.splitlines() if "TOLD " in line]
    return sorted(map(json.loads, told))


@pytest.fixture
def script(tmp_path):
    def write(body):
        path = tmp_path / "train.py"
        path.write_text("import json, os, sys\n" + TELL + body)
        return str(path)

    return write


def run(*args):
    """Under `zeroshard run`, which puts deepspeed in place by itself."""
    return called(ZEROSHARD, "run", *args, path=False)
