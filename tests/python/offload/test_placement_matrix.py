"""tests/matrix/placement_matrix.py: what the engine makes of every placement of states, gradients and parameters."""

import os
import subprocess
import sys

import devices
import pytest
import simulated
from built import REPOSITORY

MATRIX = REPOSITORY / "tests" / "matrix"


@pytest.mark.parametrize(
    "kept,options",
    [
        ("cpu", []),
        pytest.param("device", ["--on", "lazy"], marks=simulated.needed),
        pytest.param("device", ["--on", "cuda"], marks=devices.NEEDS_GPU),
    ],
)
def test_placements_are_planned_and_refused_as_kept_and_have_one_digest(kept, options, release):
    every = "1" if release else "31"  # a prime: each value of each key occurs
    done = subprocess.run(
        [sys.executable, MATRIX / "placement_matrix.py", "--plans", "--every", every, *options],
        capture_output=True,
        text=True,
        timeout=1200,
        env=os.environ | {"ZEROSHARD_LOG_LEVEL": "error"},
    )
    assert done.returncode == 0, done.stderr
    lines = (MATRIX / f"placements_on_{kept}.txt").read_text().splitlines()
    assert done.stdout.splitlines() == lines[:: int(every)]
