"""tests/matrix/placement_matrix.py: what the engine makes of every placement of states, gradients and parameters."""

import os
import subprocess
import sys

import devices
import pytest
import simulated
from built import REPOSITORY

MATRIX = REPOSITORY / "tests" / "matrix"


def test_placements_of_ranks_on_the_cpu(release):
    expect_as_kept("cpu", [], release)


@pytest.mark.parametrize(
    "device",
    [pytest.param("lazy", marks=simulated.needed), pytest.param("cuda", marks=devices.NEEDS_GPU)],
)
def test_placements_beside_a_device(device, release):
    expect_as_kept("device", ["--on", device], release)


def expect_as_kept(kept, options, release):
    """They are planned and refused as kept, and have one digest."""
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
