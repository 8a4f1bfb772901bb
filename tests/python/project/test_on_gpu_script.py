"""tools/on_gpu.sh, rehearsed without a GPU: the same steps, limits, results and ends as on a machine that has one."""

import json
import os
import signal
import subprocess
import sys

import pytest
import simulated
from built import BUILD, REPOSITORY
from waiting import wait_for

pytestmark = pytest.mark.skipif(simulated.library() is None, reason="this build has no simulated device")
FILES = {"summary.json", "summary.md", "bench.json", "bench.md", "build.log", "tests.log", "bench.log"}


STEPS = ("machine", "build", "kernels", "digests", "memcheck", "optimizer", "save")
AMPLE = " ".join(f"{step}=600" for step in STEPS)  # a busy machine may take ten times as long


def start(out, *steps, **environment):
    known = {"OUT": str(out), "PYTHON": sys.executable, "ZEROSHARD_BUILD_DIR": str(BUILD)}
    known = os.environ | known | {"ZEROSHARD_GPU_LIMITS": AMPLE, "ZEROSHARD_GPU_SECONDS": "3000"} | environment
    return subprocess.Popen(
        ["tools/on_gpu.sh", "--rehearse", *steps],
        cwd=REPOSITORY, env=known, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def rehearse(out, *steps, **environment):
    process = start(out, *steps, **environment)
    printed, _ = process.communicate()
    return process.returncode, printed, summary_of(out)


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


def states(summary):
    return {step["name"]: step["state"] for step in summary["steps"]}


def test_steps_pass_and_leave_their_results(tmp_path):
    code, printed, summary = rehearse(tmp_path, *STEPS)
    assert (code, summary["state"]) == (0, "passed"), printed
    told = states(summary)
    # Without the program, the step says so; the same step would run it.
    assert told.pop("memcheck") in ("skipped", "passed")
    assert {name for name, state in told.items() if state == "passed"} == {*STEPS} - {"memcheck"}
    assert {state for name, state in told.items() if name not in STEPS} == {"not reached"}
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert "[       OK ] SimulatedKernels.Pack" in (tmp_path / "tests.log").read_text()
    assert "test_the_digest_is_the_cpus[fp32-simulated] PASSED" in (tmp_path / "tests.log").read_text()
    benches = json.loads((tmp_path / "bench.json").read_text())
    assert set(benches) == {"optimizer small", "save small"}
    for entry in benches.values():
        assert entry["command"].endswith("--device cpu --small") and entry["machine"]["cpu"] and entry["figures"]
    assert "| optimizer |" in printed and "stall, first" in printed


def test_a_step_that_is_cut_off_leaves_the_others(tmp_path):
    code, printed, summary = rehearse(tmp_path, "digests", "build", ZEROSHARD_GPU_LIMITS=f"{AMPLE} digests=1")
    assert (code, summary["state"]) == (1, "failed"), printed
    told = {step["name"]: step for step in summary["steps"]}
    assert told["digests"]["state"] == "cut off" and told["digests"]["exit_code"] == 124
    assert told["build"]["state"] == "passed"
    assert told["digests"]["limit"] == 1 and told["build"]["limit"] > 1


def test_a_step_that_fails_says_so(tmp_path):
    code, printed, summary = rehearse(tmp_path, "build", "machine", ZEROSHARD_BUILD_DIR=str(tmp_path / "nothing"))
    assert (code, summary["state"]) == (1, "failed"), printed
    told = states(summary)
    assert (told["machine"], told["build"]) == ("passed", "failed")
    assert "zs_simulated_device.so" in printed  # the end of its log


def test_the_total_limit_shortens_steps(tmp_path):
    """Two seconds in all are fewer than any step needs."""
    code, printed, summary = rehearse(tmp_path, "machine", "build", ZEROSHARD_GPU_SECONDS="2")
    assert (code, summary["state"]) == (1, "failed"), printed
    assert set(states(summary).values()) == {"not reached"}


def test_a_run_that_is_interrupted_has_told_what_it_knows(tmp_path):
    process = start(tmp_path, "build", "digests", "save")
    wait_for(lambda: (tmp_path / "summary.json").exists() and states(summary_of(tmp_path))["digests"] == "running",
             "the step to begin", seconds=60)  # fmt: skip
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate()
    summary = summary_of(tmp_path)
    assert (process.returncode, summary["state"]) == (143, "cut off"), printed
    told = states(summary)
    assert (told["build"], told["digests"], told["save"]) == ("passed", "cut off", "not reached")
    assert "| digests |" in (tmp_path / "summary.md").read_text()
    assert "test_accelerator" in (tmp_path / "build.log").read_text()


def test_an_unknown_step_is_an_error(tmp_path):
    process = start(tmp_path, "biuld")
    printed, _ = process.communicate()
    assert process.returncode == 2 and "biuld" in printed
