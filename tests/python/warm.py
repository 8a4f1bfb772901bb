"""A `python` for scripts of tests: forks of one process that has torch, Transformers, PEFT and TRL loaded.

An interpreter takes up to ten seconds of processor time to import these, a fork none. The fork has the script's
arguments, environment, folder, open files, process group, processors and host. Whoever started it reaches it by signals
and sees its exit code. `make test` starts the scripts of some tests so; without --sample interpreters run them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import random
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

LEADER = "ZEROSHARD_TESTS_LEADER"  # the process of pytest that started all others; the server ends with it
LOADED = ("peft", "transformers.trainer", "transformers.models.llama", "trl.trainer.sft_trainer", "zeroshard")
MOST_BYTES = 1 << 20  # of a request
MOST_FILES = 64
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1


def lead() -> None:
    """This process of pytest, and those that it starts, shall have one server, which ends with it."""
    os.environ.setdefault(LEADER, f"{os.getpid()}-{time.time_ns()}")


def python() -> str:
    """The program, or the interpreter of the tests where no server is wanted."""
    return _program() if LEADER in os.environ else sys.executable


def environment() -> str:
    """What VIRTUAL_ENV is, so that `zeroshard run` takes python()."""
    return str(Path(python()).parents[1])


@functools.cache
def _program() -> str:
    from waiting import wait_for
    from zeroshard.compat import alias

    own = {**os.environ, "PYTHONPATH": alias.PATH, "OMP_NUM_THREADS": "1"}
    subprocess.Popen([sys.executable, "-u", __file__, "serve"], env=own, stdin=subprocess.DEVNULL)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        wait_for(lambda: probe.connect_ex(str(_folder() / "socket")) == 0, "the server of scripts")
    return str(_folder() / "bin" / "python")


def _folder() -> Path:
    """It exists while the server runs."""
    return Path(tempfile.gettempdir(), f"zeroshard-warm-{os.environ[LEADER]}")


def _ask(address: str, arguments: list[str]) -> None:
    """Is for its parent what the server's fork is: `python [-u] SCRIPT ARGUMENTS`. Other uses start an interpreter."""
    script = arguments[1:] if arguments[:1] == ["-u"] else arguments
    if not script or not script[0].endswith(".py"):
        os.execv(sys.executable, [sys.executable, *arguments])
    request = {
        "argv": script,
        "environment": {**os.environ, "VIRTUAL_ENV": os.path.dirname(os.path.dirname(sys.executable))},
        "folder": os.getcwd(),
        "files": [number for number in range(MOST_FILES) if _is_inherited(number)],
        "group": os.getpgrp(),
        "processors": list(os.sched_getaffinity(0)),
    }
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(address)
    socket.send_fds(server, [json.dumps(request).encode()], request["files"])
    while message := server.recv(MOST_BYTES):
        kind, number = message.split()
        if kind == b"status":
            _end_with(int(number))
        for signal_number in FORWARDED:
            signal.signal(signal_number, lambda which, _, pid=int(number): os.kill(pid, which))
    sys.exit("the server of scripts has ended")


def _end_with(status: int) -> None:
    """As the process whose status it is."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False


def _serve() -> list[str] | None:
    """Forks for each request until the tests end. Returns in the fork, with the argv of its script."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _folder().mkdir()
    except FileExistsError:  # another worker has started a server
        return None
    program, address = _folder() / "bin" / "python", _folder() / "socket"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{__file__}" run "{address}" "$@"\n')
    program.chmod(0o755)
    listener.bind(str(address))
    listener.listen(MOST_FILES)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in LOADED:
        with contextlib.suppress(ImportError):  # a script that needs it says so
            importlib.import_module(name)
    names = {Path(task, "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    assert len(names - {"jemalloc_bg_thd"}) == 1, f"a fork would lack a thread, other than jemalloc's: {names}"
    gc.collect()
    gc.freeze()  # the garbage collector of a fork need not look at, and so copy, any of this
    with selectors.SelectSelector() as ready:  # which has no descriptor of its own
        leader = os.pidfd_open(int(os.environ[LEADER].partition("-")[0]))
        ready.register(leader, selectors.EVENT_READ)
        ready.register(listener, selectors.EVENT_READ, listener)
        while True:
            for key, _ in ready.select():
                if key.fd == leader:
                    shutil.rmtree(_folder())
                    return None
                if key.data is listener:
                    if (argv := _fork(ready, listener)) is not None:
                        return argv
                elif key.fd in ready.get_map():
                    _end(ready, *key.data)


def _fork(ready: selectors.SelectSelector, listener: socket.socket) -> list[str] | None:
    connection = listener.accept()[0]
    message, files, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_FILES)
    if not message:  # the tests asked whether somebody listens
        connection.close()
        return None
    pid = os.fork()
    if pid == 0:
        for key in list(ready.get_map().values()):
            os.close(key.fd)
        _enter_namespaces(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        connection.send(f"pid {os.getpid()}".encode())
        connection.close()
        return _become(json.loads(message), files)
    for number in files:
        os.close(number)
    ended = os.pidfd_open(pid)
    for descriptor in (ended, connection.fileno()):
        ready.register(descriptor, selectors.EVENT_READ, (pid, ended, connection))
    return None


def _end(ready: selectors.SelectSelector, pid: int, ended: int, connection: socket.socket) -> None:
    """The fork has ended, or its parent's child was killed: the fork is killed, too."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(ended, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(OSError):
        connection.send(f"status {status}".encode())
    for descriptor in (ended, connection.fileno()):
        ready.unregister(descriptor)
    os.close(ended)
    connection.close()


def _enter_namespaces(pid: int) -> None:
    """Those of a process on a host of hosts.py. Not who enters a namespace of pids is in it, but its children are."""
    kinds = {"net": CLONE_NEWNET, "uts": CLONE_NEWUTS, "mnt": CLONE_NEWNS, "pid": CLONE_NEWPID}
    others = [kind for kind in kinds if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")]
    if not others:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.pidfd_open(pid), sum(kinds[kind] for kind in others)) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter the namespaces {others} of process {pid}")
    if child := os.fork():
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _end_with(os.waitpid(child, 0)[1])


def _become(request: dict, files: list[int]) -> list[str]:
    """In the fork: has what the request says. Returns the argv of its script."""
    import numpy
    import torch

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):  # the group is of another session
        os.setpgid(0, request["group"])
    os.sched_setaffinity(0, request["processors"])
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 2 * MOST_FILES) for number in files]
    for number in {0, 1, 2, *files}:
        os.close(number)
    for number, target in zip(moved, request["files"], strict=True):
        os.dup2(number, target)
        os.close(number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    first = [os.path.dirname(os.path.abspath(request["argv"][0]))]
    first += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:2] = first  # instead of this file's folder and the server's PYTHONPATH
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    numpy.random.seed()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(request["processors"])))
    return request["argv"]


def _run(argv: list[str]) -> None:
    """As `python ARGV`: the script is the module __main__ until the process has ended."""
    sys.argv[:] = argv
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = os.path.join(os.getcwd(), argv[0])
    exec(compile(Path(argv[0]).read_bytes(), main.__file__, "exec"), vars(main))


if __name__ == "__main__":
    if sys.argv[1] == "run":
        _ask(sys.argv[2], sys.argv[3:])
    elif (argv := _serve()) is not None:
        _run(argv)
