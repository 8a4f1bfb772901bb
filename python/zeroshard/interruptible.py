"""Calls that wait for other ranks inside of torch, which looks at no signal meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def interruptibly(call: Callable[[], Result]) -> Result:
    """``call()``, while handlers of signals run, as that of Ctrl-C. What they raise leaves the call behind."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            if device is not None:  # each thread has its own
                torch.cuda.set_device(device)
            results.append(call())
        except BaseException as error:  # noqa: BLE001 (raised by the thread that waits)
            errors.append(error)

    # A daemon: an interrupted process ends without it.
    thread = threading.Thread(target=run, name="zeroshard-start", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors.pop()
    return results.pop()
