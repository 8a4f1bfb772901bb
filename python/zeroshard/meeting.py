"""How ranks come together before they are connected, and notice those that do not."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from . import _C

Result = TypeVar("Result")
_connecting: list[threading.Thread] = []  # left behind while they wait inside of torch.distributed


def meet(store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> _C.Meeting:
    """Returns when all ranks have called it.

    Raises ``CommError`` when one that had come has died, or has not come in time: it names those that came and those
    that did not.
    """
    meeting = None
    try:
        meeting = _C.Meeting(
            write=store.set,
            count=lambda key: store.add(key, 1),
            has=lambda key: store.check([key]),
            read=store.get,
            rank=rank,
            world_size=world_size,
            timeout_ms=max(1, int(timeout.total_seconds() * 1000)),
        )
        nap = 0.001
        while not meeting.all_here():
            time.sleep(nap)
            nap = min(2 * nap, 0.02)
    except dist.DistError as error:
        text = f"the store that rank 0 serves does not answer: {error}"
        if meeting is None:
            raise _C.CommError(f"rank {rank}: {text}") from error
        meeting.explain(text)
    return meeting


def while_all_live(meeting: _C.Meeting, what: str, connect: Callable[[], Result]) -> Result:
    """What ``connect()`` returns. Raises ``CommError`` when a rank dies meanwhile, or it takes too long.

    It runs on a thread of its own, since nothing of torch.distributed that connects ranks can be interrupted, neither
    by a death nor by Ctrl-C; then the thread is left behind.
    """
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    answer: dict[str, Any] = {}
    done = threading.Event()

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            answer["result"] = connect()
        except BaseException as error:  # noqa: BLE001 (raised below)
            answer["error"] = error
        finally:
            done.set()

    thread = threading.Thread(target=run, name="zeroshard-connect", daemon=True)
    thread.start()
    try:
        while not done.wait(0.05):
            meeting.check(what)
    except BaseException:
        _connecting.append(thread)
        raise
    error = answer.get("error")
    if isinstance(error, dist.DistError) or type(error) is RuntimeError:  # of c10d and of Gloo
        meeting.explain(str(error))
    if error is not None:
        raise error
    return answer["result"]


@atexit.register
def _leave() -> None:
    """An interpreter that ends while such a thread comes back to it aborts: the process has failed, and ends here."""
    if any(thread.is_alive() for thread in _connecting):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
