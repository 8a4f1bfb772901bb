"""Several hosts on one: network namespaces joined by a bridge, each with its own name, /etc/hosts, /dev/shm and pids.

A host ends with its first process, which the kernel lets no other process of the host outlive.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_OWN = ["--net", "--uts", "--mount", "--pid"]
_FOREVER = "echo ready; exec sleep infinity"


class Host:
    """`name` is all it knows of itself: like Debian, it resolves its own name to 127.0.1.1."""

    def __init__(self, number: int, count: int, folder: Path) -> None:
        self.name = f"host{number}"
        self.address = f"10.77.0.{number + 1}"
        self._names = folder / f"{self.name}.hosts"
        others = "".join(f"10.77.0.{other + 1} host{other}\n" for other in range(count) if other != number)
        self._names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n{others}")
        setup = (
            f"hostname {self.name}; mount --bind {self._names} /etc/hosts; mount -t tmpfs tmpfs /dev/shm; "
            f"ip link set lo up; {_FOREVER}"
        )
        self._first = _start(["unshare", *_OWN, "--fork", "--kill-child", "--mount-proc", "sh", "-ec", setup])
        # unshare's child is process 1 of the host.
        self.pid = int(Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text())
        self._namespace = os.readlink(f"/proc/{self.pid}/ns/pid")

    def start(self, *command: Any, **options: Any) -> subprocess.Popen[str]:
        """Starts a command here; its stdout and stderr are one text."""
        enter = ["nsenter", "--target", str(self.pid), *_OWN, f"--wd={os.getcwd()}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([*enter, *map(str, command)], **pipes | options)

    def processes(self) -> dict[int, str]:
        """The numbers, as seen from outside, and the command lines of all processes but the first."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "ns/pid") == self._namespace and int(folder.name) != self.pid:
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if line:  # else it has ended
                        found[int(folder.name)] = line
        return found

    def ip(self, *commands: str) -> None:
        """Each is one of the program ip."""
        _ip(self.pid, *commands)

    def kill(self) -> None:
        """Ends all its processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._first.wait()
        self._first.stdout.close()

    def cut_off(self) -> None:
        """From here on no packet reaches it or leaves it; nobody is told."""
        _ip(self._switch, f"link set to{self.name} nomaster")

    def plug_in(self, switch: int) -> None:
        """Connects it to the bridge of the process `switch`."""
        self._switch = switch
        cable = f"to{self.name}"
        _ip(switch, f"link add {cable} type veth peer name eth0 netns {self.pid}", f"link set {cable} master bridge up")
        self.ip(f"address add {self.address}/24 dev eth0", "link set eth0 up")


def _ip(pid: int, *commands: str) -> None:
    enter = ["nsenter", "--target", str(pid), "--net", "ip", "-batch", "-"]
    subprocess.run(enter, input="\n".join(commands) + "\n", text=True, check=True, capture_output=True)


@contextlib.contextmanager
def hosts(count: int, folder: Path) -> Iterator[list[Host]]:
    """`count` hosts that reach each other by name; host0 is the first. They and all their processes end with it."""
    with contextlib.ExitStack() as stack:
        switch = _start(
            ["unshare", "--net", "sh", "-ec", f"ip link add bridge type bridge; ip link set bridge up; {_FOREVER}"]
        )
        stack.callback(switch.stdout.close)
        stack.callback(switch.wait)
        stack.callback(switch.kill)
        made = []
        for number in range(count):
            made.append(Host(number, count, folder))
            stack.callback(made[-1].kill)
            made[-1].plug_in(switch.pid)
        yield made


def _start(command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if process.stdout.readline() != "ready\n":
        error = process.communicate()[1].strip()
        raise OSError(f"{' '.join(command)}: {error}")
    process.stderr.close()
    return process


@functools.cache
def _why_impossible() -> str:
    if os.geteuid() != 0:
        return "only root makes hosts of namespaces"
    try:
        with tempfile.TemporaryDirectory() as folder, hosts(2, Path(folder)):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no hosts of namespaces can be made here: {error}"


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Any]:
    """lan(2) makes two hosts. Skips where that is impossible."""
    if why := _why_impossible():
        pytest.skip(why)
    with contextlib.ExitStack() as stack:
        yield lambda count: stack.enter_context(hosts(count, tmp_path))
