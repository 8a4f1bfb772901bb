"""How ranks come together before they are connected, and notice those that do not."""

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
_RECONNECT = timedelta(seconds=10)  # to a store that has just answered
_connecting: list[threading.Thread] = []  # left behind while they wait inside of torch.distributed


def meet(store: dist.Store, rank: int, world_size: int, timeout: timedelta, purpose: str) -> _C.Meeting:
    """Returns when all ranks have called it, for the same ``purpose``.

    Raises ``CommError`` when one that had come has died or left, or has not come in time: it names those that came and
    those that did not. Its ``out_of_step`` is true when ranks came for different things.
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
    """A call that waits keeps others on the same connection waiting, too."""
    if not hasattr(store, "clone"):
        return store
    store.check(["zeroshard/meeting"])  # fails at once when nobody serves it any more, where another would wait
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
    """An error inside is the end of the meeting, of which the other ranks learn."""
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
    """What ``connect()`` returns. Raises ``CommError`` when a rank dies or leaves meanwhile, or it takes too long.

    It runs on a thread of its own, since nothing of torch.distributed that connects ranks can be interrupted, neither
    by a death nor by Ctrl-C; then the thread is left behind, and ends by ``undo(result)`` when it succeeds after all.
    Without a meeting nobody is watched.
    """
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    answer: dict[str, Any] = {}
    lock = threading.Lock()
    done = threading.Event()

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
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
        # Ranks may have failed after different numbers of groups: names and keys are to be new, and alike.
        dist.distributed_c10d._world.group_count = 1_000_000 * meeting.number
    thread = threading.Thread(target=run, name="zeroshard-connect", daemon=True)
    with left_on_error(meeting):
        thread.start()
        try:
            while not done.wait(0.05):
                with suppress(dist.DistError):  # the store does not answer: connect() will fail, or the time is over
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
            meeting.explain(str(error))  # of c10d and of Gloo
        if error is not None:
            raise error
    return answer["result"]


def await_left_behind(timeout: timedelta) -> None:
    """Returns when nothing connects ranks any more for a try that has failed: it would interfere with the next."""
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
    """A thread that comes back to an interpreter that ends would abort the process."""
    if any(thread.is_alive() for thread in _connecting):
        _C.end_beside_threads()
