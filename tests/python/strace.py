"""System calls of a running process, traced or made to fail; for tests."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time

import pytest


def require():
    """Skips the test where strace is missing or must not attach to the ranks."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    child = subprocess.Popen(["sleep", "30"])
    try:
        with attached(child.pid, "all"):
            pass
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def attached(thread, calls, *options):
    """Traces `calls` of a thread, by its number (a process': its main thread), while the block runs.

    Gives a function that returns the lines of the trace afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="zeroshard-strace-") as folder:
        out, said = os.path.join(folder, "trace"), os.path.join(folder, "said")
        with open(said, "w") as messages:
            command = ["strace", "-p", str(thread), "-o", out, "-e", f"trace={calls}", *options]
            tracer = subprocess.Popen(command, stderr=messages, stdin=subprocess.DEVNULL)
        lines = []
        try:
            wait_for_attachment(tracer, said)
            yield lambda: lines
        finally:
            if tracer.poll() is None:
                time.sleep(0.01)  # what the last calls left has to reach the trace
                tracer.terminate()  # detaches
            tracer.wait(10)
            with contextlib.suppress(FileNotFoundError), open(out, errors="replace") as trace:
                lines += [line for line in trace.read().splitlines() if re.match(r"\w+\(", line)]


def ends_after_failing_ring(trained, go, error, first):
    """How the ranks of a world.World end when calls of io_uring of its rank 1 fail from number `first` on.

    They go on when the file `go` is there. None where there are no so many calls.
    """
    try:
        trained.wait_for("ready.")
        fault = f"inject=io_uring_enter:error={error}:when={first}+"
        with attached(trained.pids[1], "io_uring_enter", "-e", fault) as calls:
            go.touch()
            ends = trained.results()
    finally:
        trained.kill()
    if not calls():
        pytest.skip("the system refuses io_uring")
    return ends if any(f"= -1 {error}" in call for call in calls()) else None


def check_ends_of_failed_swap(ends, swap, end_s):
    """Both ranks said within `end_s` that rank 1 cannot use its file in `swap`; nothing is left. Gives the digest."""
    for end in ends:
        digest, said, seconds = end.value
        assert f"the swap file in {swap}" in said, end
        assert seconds < end_s
    assert "IoError" in ends[1].value[1] and "CommError" in ends[0].value[1]
    assert "rank 1" in ends[0].value[1]
    assert not os.listdir(swap)
    return digest


def wait_for_attachment(tracer, said):
    deadline = time.monotonic() + 10
    while True:
        with open(said) as messages:
            text = messages.read()
        if " attached" in text:
            return
        if tracer.poll() is not None or time.monotonic() > deadline:
            pytest.skip(f"strace cannot attach: {text.strip()}")
        time.sleep(0.002)
