"""`zeroshard run` as the first process of a container: nobody above it reaps, and signals have no default action."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from built import ZEROSHARD, needs
from launched import (
    DAEMON,
    NOTE,
    WAIT,
    WAIT_FOR_TWO,
    environment,
    forget_pids,
    script,  # noqa: F401 - a fixture
)
from test_supervisor import first_child, no_process_left
from waiting import wait_for

pytestmark = [needs(ZEROSHARD), pytest.mark.fault]
CONTAINER = ["unshare", "--user", "--map-root-user", "--kill-child", "--pid", "--mount-proc"]
# Starts a process that nobody waits for and that soon ends.
ORPHAN = "subprocess.run(['sh', '-c', 'sleep 0.1 &'])\n"


@pytest.fixture
def start(script, tmp_path):
    """Starts a job of two ranks in a process namespace of its own; gives it and the number of its launcher outside."""
    if shutil.which("unshare") is None or subprocess.run([*CONTAINER, "true"], capture_output=True).returncode != 0:
        pytest.skip("no process namespaces here")
    started = []

    def begin(body):
        command = [*CONTAINER, ZEROSHARD, "run", "--nproc", "2", script(body)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()))
        return started[-1], wait_for(lambda: first_child(started[-1].pid), "the launcher")

    yield begin
    for process in started:  # of a test that failed
        process.kill()
        process.communicate()


def all_are_up(folder, count):
    wait_for(lambda: len(list(folder.glob("pid.*"))) == count, f"{count} processes", seconds=30)


def states_below(pid):
    """Of all descendants of a process."""
    children = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:  # it has ended
            continue
        children.setdefault(int(parent), []).append((int(path.parent.name), state))
    states, parents = [], [pid]
    while parents:
        for child, state in children.get(parents.pop(), []):
            states.append(state)
            parents.append(child)
    return states


@pytest.mark.row("K7")
def test_it_reaps_orphans(start, tmp_path):
    process, launcher = start(ORPHAN + NOTE + WAIT)
    all_are_up(tmp_path, 2)

    def only_the_job_is_left():
        states = states_below(launcher)
        return len(states) == 3 and "Z" not in states  # the supervisor and two ranks

    wait_for(only_the_job_is_left, "orphans to be reaped")
    assert process.poll() is None


@pytest.mark.row("K7")
@pytest.mark.parametrize("code", [0, 3])
def test_its_code_is_that_of_the_job(start, tmp_path, code):
    process, _ = start(DAEMON + NOTE + WAIT_FOR_TWO + f"sys.exit({code})")
    _, err = process.communicate(timeout=30)
    assert process.returncode == code, err


@pytest.mark.row("K7")
def test_it_passes_signals_on(start, tmp_path):
    process, launcher = start(DAEMON + NOTE + WAIT)
    all_are_up(tmp_path, 4)
    os.kill(launcher, signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 143, err


@pytest.mark.row("K7")
def test_kill_9_leaves_nobody(start, tmp_path, release):
    for _ in range(50 if release else 1):
        process, launcher = start(DAEMON + NOTE + WAIT)
        all_are_up(tmp_path, 4)
        os.kill(launcher, signal.SIGKILL)
        wait_for(lambda: no_process_left(tmp_path), "all processes to be gone", seconds=5)
        process.communicate(timeout=10)
        forget_pids(tmp_path)
