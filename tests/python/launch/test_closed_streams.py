"""Processes that start without standard streams, as daemons do: nothing of ours may get their descriptors."""

import json
import os
import subprocess
import sys

import pytest
from built import ZEROSHARD, ZEROSHARD_TORCH, needs
from train_program import (
    command,
    make,
    tokens,  # noqa: F401 - a fixture
    write,
)

assert tokens  # a fixture

CLOSED = {"output": ">&-", "errors": "2>&-", "all": "<&- >&- 2>&-"}

# Tells what the descriptors 0, 1 and 2 are when a rank runs, in a file beside the script.
RANK = """
import os
names = [os.readlink(f"/proc/self/fd/{fd}") if os.path.exists(f"/proc/self/fd/{fd}") else "closed" for fd in range(3)]
with open(f"{os.path.dirname(__file__)}/rank-{os.environ['RANK']}", "w") as told:
    told.write("\\n".join(names))
print("a line of the script")
"""

# One rank that logs and keeps its states in a file; told: the descriptors at the end, and what the swap file is.
ENGINE = """
import json, os, sys, torch, zeroshard
zero = {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": sys.argv[1], "buffer_count": 1}}
config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
          "steps_per_print": 1, "zero_optimization": zero,
          "csv_monitor": {"enabled": True, "output_path": sys.argv[1], "job_name": "job"}}
engine, *_ = zeroshard.initialize(model=torch.nn.Linear(8, 8), config=config)
for step in range(3):
    engine.backward(engine(torch.ones(2, 8)).pow(2).mean())
    engine.step()
with open(sys.argv[2], "w") as told:
    json.dump([os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)], told)
"""


def run_closed(streams, *argv):
    script = f'exec "$@" {CLOSED[streams]}'
    return subprocess.run(["sh", "-c", script, "sh", *map(str, argv)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("streams", CLOSED)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_launcher_without_streams_starts_its_ranks(tmp_path, streams, ranks):
    (tmp_path / "script.py").write_text(RANK)
    done = run_closed(streams, ZEROSHARD, "run", "--nproc", ranks, tmp_path / "script.py")
    assert done.returncode == 0, done
    for rank in range(ranks):
        names = (tmp_path / f"rank-{rank}").read_text().splitlines()
        assert "closed" not in names and not any("zeroshard" in name for name in names), names


@needs(ZEROSHARD_TORCH)
@pytest.mark.parametrize("streams", CLOSED)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_without_streams_trains(tmp_path, tokens, streams, ranks):
    _, train = make(tmp_path, tokens, steps=2)
    done = run_closed(streams, *command(write(tmp_path, train, stage=1), ranks))
    assert done.returncode == 0 and (tmp_path / "trained" / "config.json").exists(), done


@pytest.mark.parametrize("streams", CLOSED)
def test_no_file_of_an_engine_is_a_standard_stream(tmp_path, streams):
    (tmp_path / "script.py").write_text(ENGINE)
    (tmp_path / "swap").mkdir()
    done = run_closed(streams, sys.executable, tmp_path / "script.py", tmp_path / "swap", tmp_path / "told")
    assert done.returncode == 0, done
    names = json.loads((tmp_path / "told").read_text())
    closed = {"output": [1], "errors": [2], "all": [0, 1, 2]}[streams]
    assert [names[fd] for fd in closed] == [os.devnull] * len(closed), names
