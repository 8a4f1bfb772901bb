"""Scripts under `zeroshard run`, and what becomes of their processes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from built import ZEROSHARD
from waiting import wait_for

VARIABLES = re.compile(r"RANK$|_SIZE$|^MASTER_|^TORCHELASTIC|^OMP_NUM_THREADS$|^CUDA_VISIBLE_DEVICES$|_SOCKET_IFNAME$")


def environment(**changes):
    """This process's environment without a launcher's variables; Python is the one that runs the tests."""
    env = {name: value for name, value in os.environ.items() if not VARIABLES.search(name)}
    env["VIRTUAL_ENV"] = sys.prefix
    return {**env, **changes}


def launch(*args, **options):
    """Starts `zeroshard run ARGS`, with pipes unless told otherwise."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(), **options}
    return subprocess.Popen([ZEROSHARD, "run", *args], **options)


def run(*args, **options):
    process = launch(*args, **options)
    out, err = process.communicate(timeout=30)
    return process.returncode, out.decode(), err.decode()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def script(tmp_path):
    """Writes a script that starts with some imports and `rank`; returns its path."""

    def write(body, name="train.py"):
        path = tmp_path / name
        path.write_text("import os, sys, time, signal, subprocess\nrank = int(os.environ['RANK'])\n" + body)
        return str(path)

    yield write
    for note in tmp_path.glob("pid.*"):  # of a test that failed
        pid = int(note.name[4:])
        if alive(pid) and str(tmp_path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def pids_in(folder, count, seconds=10):
    """The process ids that scripts noted as files `pid.N`, once there are `count`."""

    def noted():
        found = [int(path.name[4:]) for path in folder.glob("pid.*")]
        return found if len(found) == count else None

    return wait_for(noted, f"{count} pids", seconds)


def forget_pids(folder):
    """Before the next start of the same script."""
    for note in folder.glob("pid.*"):
        note.unlink()


# Scripts paste these lines. They wait for two such notes, wait for ever, note their own process, and start a process
# that leaves its session and is deaf to SIGTERM. A script's `time.sleep(60)` is a rank that works on until it is ended.
WAIT_FOR_TWO = "while sum(n[:4] == 'pid.' for n in os.listdir(os.path.dirname(__file__))) < 2: time.sleep(0.01)\n"
WAIT = "while True: time.sleep(60)\n"
NOTE = "open(f'{os.path.dirname(__file__)}/pid.{os.getpid()}', 'w').close()\n"
DAEMON = (
    "subprocess.Popen([sys.executable, '-c', 'import os, signal, sys, time; signal.signal(signal.SIGTERM, 1); '"
    '\'open(f"{sys.argv[1]}/pid.{os.getpid()}", "w").close(); time.sleep(60)\', os.path.dirname(__file__)],'
    " start_new_session=True)\n"
)


def supervisor_of(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(children.read_text().split()[0])


def listening_addresses(pids):
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd)):
                inodes.add(match[1])
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {fields[1].split(":")[0] for fields in lines if fields[3] == "0A" and fields[9] in inodes}
