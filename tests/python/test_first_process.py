"""`zeroshard run` as the first process of a container: nobody above it reaps, and signals have no default action."""

import os
import shutil
import signal
import subprocess

import pytest
from built import ZEROSHARD, needs
from test_launcher import DAEMON, NOTE, WAIT, WAIT_FOR_TWO, environment, script, wait_for  # noqa: F401 - a fixture
from test_supervisor import first_child, no_process_left

pytestmark = [needs(ZEROSHARD), pytest.mark.fault]
CONTAINER = ["unshare", "--user", "--map-root-user", "--fork", "--pid", "--mount-proc"]


@pytest.fixture
def start(script, tmp_path):  # noqa: F811
    """Starts a job of two ranks in a process namespace of its own; gives it and the number of its launcher outside."""
    if shutil.which("unshare") is None or subprocess.run([*CONTAINER, "true"], capture_output=True).returncode != 0:
        pytest.skip("no process namespaces here")

    def begin(body):
        command = [*CONTAINER, ZEROSHARD, "run", "--nproc", "2", script(body)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        return process, wait_for(lambda: first_child(process.pid), "the launcher")

    return begin


def all_are_up(folder, count):
    wait_for(lambda: len(list(folder.glob("pid.*"))) == count, f"{count} processes")


@pytest.mark.row("K7")
@pytest.mark.parametrize("code", [0, 3])
def test_it_reaps_what_ranks_leave_behind(start, tmp_path, code):
    process, _ = start(DAEMON + NOTE + WAIT_FOR_TWO + f"sys.exit({code})")
    _, err = process.communicate(timeout=20)
    assert process.returncode == code, err
    assert no_process_left(tmp_path)


@pytest.mark.row("K7")
def test_it_passes_signals_on(start, tmp_path):
    process, launcher = start(DAEMON + NOTE + WAIT)
    all_are_up(tmp_path, 4)
    os.kill(launcher, signal.SIGTERM)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 143, err
    assert no_process_left(tmp_path)


@pytest.mark.row("K7")
def test_kill_9_leaves_nobody(start, tmp_path):
    process, launcher = start(DAEMON + NOTE + WAIT)
    all_are_up(tmp_path, 4)
    os.kill(launcher, signal.SIGKILL)
    process.communicate(timeout=5)
    wait_for(lambda: no_process_left(tmp_path), "all processes to be gone", seconds=5)
