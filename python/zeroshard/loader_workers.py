"""Keeps worker processes of data loaders alive after a signal that asks the whole job to stop."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data._utils import signal_handling, worker

from . import _C

_own_loop = worker._worker_loop


def spare_workers(signals: tuple[int, ...]) -> None:
    """Makes the workers that loaders start from now on ignore these signals, unless this process sends them.

    Slurm and systemd send signals also to workers, but a rank needs its workers until it has stopped.
    """
    before = worker._worker_loop
    spared = set(before.args[0]) if isinstance(before, functools.partial) else set()
    worker._worker_loop = functools.partial(run_spared, tuple(sorted(spared | set(signals))))


def run_spared(signals: tuple[int, ...], *args: Any) -> None:
    """Runs torch's own loop in a worker process, and lets ``signals`` end the worker only if the parent sends them.

    For this it replaces torch's function that sets signal handlers. This is done in the worker, because a worker can be
    a new interpreter, which does not have what the parent has replaced.
    """
    set_handlers = signal_handling._set_worker_signal_handlers

    def set_all_handlers() -> None:
        set_handlers()
        _C.ignore_all_but_parent(signals)

    signal_handling._set_worker_signal_handlers = set_all_handlers
    _own_loop(*args)
