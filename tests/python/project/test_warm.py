"""The `python` that forks scripts off one server: its parent sees what it would see of an interpreter."""

import json
import os
import signal
import subprocess
import sys

import pytest
import warm
from hosts import lan  # noqa: F401 - a fixture
from launched import alive, environment
from waiting import wait_for

TELLS = """
import json, os, random, sys
assert __name__ == "__main__" and sys.modules["__main__"].__file__ == __file__
files = [number for number in range(64) if os.path.exists(f"/proc/self/fd/{number}") and os.get_inheritable(number)]
environ = {name: os.environ.get(name) for name in ("ONLY_HERE", "PYTHONPATH", "VIRTUAL_ENV", "HOME")}
print(json.dumps([__file__, sys.argv, sys.path, sys.prefix, os.getcwd(), files, environ, sys.stdin.read(),
    sorted(os.sched_getaffinity(0)), sys.stdout.write_through]))
print(json.dumps([os.getpgrp(), "transformers.trainer" in sys.modules, random.random()]), file=sys.stderr)
"""
ENDS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print(os.getpid(), flush=True)
if sys.argv[1] == "raise":
    raise ValueError("on purpose")
if sys.argv[1] == "wait":
    time.sleep(60)
if (code := int(sys.argv[1])) < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@pytest.fixture
def python(monkeypatch):
    """The program, also without --sample."""
    if warm.LEADER not in os.environ:
        monkeypatch.setenv(warm.LEADER, f"{os.getpid()}-one-test")
    return warm.python()


def start(python, script, *arguments, **options):
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([python, "-u", script, *arguments], **options)


def test_a_fork_has_the_surroundings_of_an_interpreter(python, tmp_path):
    (tmp_path / "script.py").write_text(TELLS)
    (tmp_path / "other").mkdir()
    ends = os.pipe()
    surroundings, drawn = [], set()
    for each in (sys.executable, python, python):
        process = start(
            each, "../script.py", "a", "-b", cwd=tmp_path / "other", pass_fds=ends, process_group=0,
            env=environment(ONLY_HERE="1", PYTHONPATH=str(tmp_path / "other")),
            preexec_fn=lambda: os.sched_setaffinity(0, [max(os.sched_getaffinity(0))]),
        )  # fmt: skip
        out, err = process.communicate("asked\n", timeout=60)
        group, is_warm, number = json.loads(err)
        assert (process.returncode, group, is_warm) == (0, process.pid, each == python)
        surroundings.append(json.loads(out))
        drawn.add(number)
    for end in ends:
        os.close(end)
    assert surroundings[1] == surroundings[2] == surroundings[0]
    assert len(drawn) == 3


@pytest.mark.parametrize("how,code", [("0", 0), ("3", 3), ("raise", 1), ("-9", -9), ("-15", -15)])
def test_its_exit_code_and_signal_are_those_of_the_fork(python, tmp_path, how, code):
    (tmp_path / "script.py").write_text(ENDS)
    process = start(python, tmp_path / "script.py", how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert ("ValueError: on purpose" in err) == (how == "raise")


@pytest.mark.parametrize("number,code", [(signal.SIGUSR1, 7), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_signal_reaches_the_fork(python, tmp_path, number, code):
    (tmp_path / "script.py").write_text(ENDS)
    process = start(python, tmp_path / "script.py", "wait")
    pid = int(process.stdout.readline())
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code and pid != process.pid
    wait_for(lambda: not alive(pid), "the end of the fork")


IS_ON = """
import os
print([os.uname().nodename, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "uts", "mnt", "pid"))])
print(sorted(os.listdir("/proc/sys/net/ipv4/conf")), os.listdir("/dev/shm"), os.path.exists(f"/proc/{os.getpid()}"))
"""


def test_a_fork_is_on_the_host_of_its_parent(python, lan, tmp_path):
    (tmp_path / "script.py").write_text(IS_ON)
    (host,) = lan(1)
    told = [host.start(each, "-u", tmp_path / "script.py").communicate(timeout=60) for each in (sys.executable, python)]
    assert told[1] == told[0] and host.name in told[0][0]
    assert not host.processes()


def test_other_uses_start_an_interpreter(python):
    told = subprocess.run(
        [python, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, timeout=60
    )
    assert told.stdout.strip() == sys.executable
