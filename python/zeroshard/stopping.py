"""Ends a run: saves a last checkpoint after a signal, and delays the exit until the last checkpoint is written."""

from __future__ import annotations

import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from multiprocessing.util import Finalize
from typing import Any

from . import _C
from .encoding import encode
from .loader_workers import spare_workers
from .messages import log
from .run import Run
from .together import together

# Signals within this many seconds count as one, because a rank can get the same signal twice: from a sender that
# signals all processes of the job, and from the launcher.
MOMENT_S = 2.0


def request_stop_on(run: Run, signals: Iterable[signal.Signals]) -> None:
    """Makes the first signal of each kind request a stop.

    A second signal of that kind has the effect that it had before this call, if it comes ``MOMENT_S`` later or more.
    Until then, signals of that kind have no effect. If the run's engine has ended, the first signal has the former
    effect, too. Workers of data loaders ignore the signals.
    """
    first: dict[int, float] = {}  # signal -> time of its first arrival

    def stop(number: int, frame: Any) -> None:
        now = time.monotonic()
        if run.has_ended or now - first.get(number, now) > MOMENT_S:
            signal.signal(number, previous[number])
            os.kill(os.getpid(), number)
        if run.has_ended or number in first:
            return
        first[number] = now
        # From here on C code handles the signal. If the system's default was the former effect, the second signal must
        # end even a process whose main thread never returns to Python.
        _C.ignore_for(number, int(1000 * MOMENT_S), then_default=previous[number] is signal.SIG_DFL)
        run.core.request_stop()

    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in signals}
    for number in previous:
        signal.signal(number, stop)
    spare_workers(tuple(int(number) for number in previous))


def ask_for(run: Run, name: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the result of ``ask`` for the last save. Collective.

    Returns None on every rank if ``ask`` raises on any rank, or returns what a checkpoint cannot hold. Raises
    ``CommError`` if the other ranks cannot be reached.
    """
    answer: Any = None

    def call() -> None:
        nonlocal answer
        answer = ask()
        if name == "rank_state" and not isinstance(answer, dict):
            raise ValueError(f"{name} gave a {type(answer).__name__}: it must give a dict")
        encode(answer, name, {})

    try:
        together(run, call, "save_checkpoint")
    except _C.CommError:
        raise
    except _C.Error as error:
        if run.rank == 0:
            log(f"warning: the last checkpoint is saved without {name}, because its function failed: {error}")
        return None
    return answer


def save_last(run: Run, save_dir: str | os.PathLike, save: Callable[[], None]) -> None:
    """Calls ``save``, and waits until the checkpoint is written. Collective. Raises ``IoError`` if it was not written.

    Only logs the error of an earlier save.
    """
    log(f"asked to stop: saving step {run.global_steps} in {os.fspath(save_dir)}")
    try:
        run.core.wait_for_checkpoint()
    except _C.Error as error:  # an error of an earlier save must not prevent this one
        log(f"a checkpoint was not saved: {error}")
    save()
    if not run.core.wait_for_checkpoint():
        raise _C.IoError(f"the last checkpoint was not saved in {os.fspath(save_dir)}: rank 0 has logged why")


def wait_at_exit(run: Run) -> None:
    """Delays the end of the process until the run's last checkpoint is written. If that fails, the exit code is 1.

    Ctrl-C during the wait ends the process by SIGINT.
    """
    # Finalize also calls _wait() at the end of processes that multiprocessing has forked, where atexit calls nothing.
    # Finalize calls it even if only a signal handler or a global variable still refers to the run.
    Finalize(None, _wait, (weakref.ref(run),), exitpriority=0)


def _wait(run: weakref.ref[Run]) -> None:
    if (alive := run()) is not None and not alive.has_ended:
        try:
            alive.core.wait_for_checkpoint()
        except KeyboardInterrupt:  # there is no caller to raise to, so the process ends as it would without the wait
            log("the last checkpoint was not saved: interrupted")
            sys.stdout.flush()
            sys.stderr.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        except _C.Error as error:
            log(f"the last checkpoint was not saved: {error}")
            # The process has already ended normally, so only _exit() can still change the exit code, by which a
            # supervisor learns of the failure.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
