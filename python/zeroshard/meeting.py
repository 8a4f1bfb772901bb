"""Lets ranks meet before they are connected, and detects ranks that do not arrive."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from . import _C

Result = TypeVar("Result")
_RECONNECT = timedelta(seconds=10)  # time-out of a connection to a store that has just answered
_connecting: list[threading.Thread] = []  # abandoned threads that wait inside torch.distributed


def meet(store: dist.Store, rank: int, world_size: int, timeout: timedelta, purpose: str) -> _C.Meeting:
    """Waits until all ranks have called this function for the same ``purpose``. Returns their meeting.

    Raises ``CommError`` if a rank that had arrived has died or left, or if a rank does not arrive in time. If ranks do
    not arrive in time, the error names the missing ranks and those that arrived. The error's attribute ``out_of_step``
    is true if the purposes differed.
    """
    meeting = None
    try:
        board = _own_connection(store)
        meeting = _C.Meeting(
            write=board.set,
            count=lambda key: board.add(key, 1),
            has=lambda key: board.check([key]),
            read=board.get,
            rank=rank,
            world_size=world_size,
            timeout_ms=max(1, int(timeout.total_seconds() * 1000)),
            purpose=purpose,
        )
        with left_on_error(meeting):
            nap = 0.001
            while not meeting.all_here():
                time.sleep(nap)
                nap = min(2 * nap, 0.02)
    except dist.DistError as error:
        text = f"the store that rank 0 serves does not answer: {error}"
        if meeting is None:
            raise _C.CommError(f"rank {rank}: {text}") from error
        meeting.explain(text)
    except _C.CommError as error:
        error.out_of_step = meeting is not None and meeting.out_of_step
        raise
    return meeting


def _own_connection(store: dist.Store) -> dist.Store:
    """Returns a separate connection to ``store``, because a call that waits blocks other calls on its connection.

    Returns ``store`` itself if its class cannot make another connection.
    """
    if not hasattr(store, "clone"):
        return store
    store.check(["zeroshard/meeting"])  # fails at once if nobody serves the store any more; other calls would wait
    timeout = store.timeout
    store.set_timeout(min(timeout, _RECONNECT))
    try:
        own = store.clone()
    finally:
        store.set_timeout(timeout)
    own.set_timeout(timeout)
    return own


@contextmanager
def left_on_error(meeting: _C.Meeting | None) -> Iterator[None]:
    """Leaves the meeting, if there is one, when the block raises, so that the other ranks learn of the error."""
    try:
        yield
    except BaseException as error:
        if meeting is not None:
            text = str(error).partition("\n")[0]
            meeting.leave(f"{type(error).__name__}: {text}" if text else type(error).__name__)
        raise


def while_all_live(
    meeting: _C.Meeting | None, what: str, connect: Callable[[], Result], undo: Callable[[Result], None]
) -> Result:
    """Returns the result of ``connect()``. Raises ``CommError`` at a time-out, or if a rank dies or leaves before that.

    ``connect()`` runs on a thread of its own, because neither the death of a rank nor Ctrl-C can interrupt calls of
    torch.distributed that connect ranks. An interrupted call of this function raises at once and leaves the thread
    behind, see ``await_left_behind``. If the thread succeeds all the same, ``undo(result)`` is called. Without a
    meeting, deaths of ranks are not noticed, and errors of ``connect()`` are raised as they are.
    """
    device = _device_in_use()
    answer: dict[str, Any] = {}
    lock = threading.Lock()
    done = threading.Event()

    def run() -> None:
        try:
            if device is not None:
                torch.accelerator.set_device_index(device)
            result = connect()
            with lock:
                answer["result"] = result
                left = "left" in answer
            if left:
                undo(result)
        except BaseException as error:  # noqa: BLE001 (raised below)
            answer["error"] = error
        finally:
            done.set()

    if meeting is not None and meeting.retried:
        # torch makes the names and keys of a group from `group_count`. Ranks can have failed after different numbers of
        # groups. So `group_count` is set to a value that is equal on all ranks, and that no earlier try has reached.
        dist.distributed_c10d._world.group_count = 1_000_000 * meeting.number
    thread = threading.Thread(target=run, name="zeroshard-connect", daemon=True)
    with left_on_error(meeting):
        thread.start()
        try:
            while not done.wait(0.05):
                with suppress(dist.DistError):  # if the store does not answer, connect() will fail or time out
                    if meeting is not None:
                        meeting.check(what)
        except BaseException:
            with lock:
                answer["left"] = True
                connected = "result" in answer
            if connected:
                undo(answer["result"])
            _connecting.append(thread)
            raise
        error = answer.get("error")
        if meeting is not None and (isinstance(error, dist.DistError) or type(error) is RuntimeError):
            meeting.explain(str(error))  # raises an explanation for errors of c10d and of Gloo
        if error is not None:
            raise error
    return answer["result"]


def _device_in_use() -> int | None:
    """Returns the number of this thread's GPU, or None if no GPU is in use. A new thread would begin with GPU 0."""
    kind = torch.accelerator.current_accelerator()
    in_use = kind is not None and torch.get_device_module(kind).is_initialized()
    return torch.accelerator.current_device_index() if in_use else None


def await_left_behind(timeout: timedelta) -> None:
    """Waits until the threads that ``while_all_live`` left behind have ended, because they would disturb the next try.

    Raises ``CommError`` at the time-out.
    """
    end = time.monotonic() + timeout.total_seconds()
    while _connecting:
        _connecting[-1].join(max(0.0, end - time.monotonic()))
        if _connecting[-1].is_alive():
            raise _C.CommError(
                f"what an earlier try of this rank began still waits inside of torch.distributed after "
                f"{timeout.total_seconds():g} s (zeroshard.timeout_s): try again later, or start the process anew"
            )
        _connecting.pop()


@atexit.register
def _stay_behind() -> None:
    """Lets the process end beside threads that still connect.

    Such a thread would abort the process if it returned to Python after the interpreter's end.
    """
    if any(thread.is_alive() for thread in _connecting):
        _C.end_beside_threads()
