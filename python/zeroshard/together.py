"""Raises the error of one rank on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import _C
from .run import Run


def together(run: Run, step: Callable[[], None], call: str) -> None:
    """Calls ``step``. If it raises on any rank, every rank raises the error of the lowest such rank. Collective.

    The raised error is of one of zeroshard's classes (see ``Engine::run_together``). On a rank whose ``step`` was
    interrupted, as by Ctrl-C, the interruption is raised instead. ``call`` is the name of the user's call. It is in the
    error if other ranks call something else.
    """
    with naming_causes() as keeping:
        step = keeping(step)
        run.core.together(step, call)


@contextmanager
def naming_causes() -> Iterator[Callable[[Callable], Callable]]:
    """Surrounds a call of the core that takes callbacks.

    Yields a function by which the caller must wrap the callbacks. The core sends the text of a callback's exception to
    all ranks. On the rank of that callback, the exception itself becomes the cause of the core's error. If the
    exception is not an ``Exception``, as for Ctrl-C, it is raised instead of the core's error.
    """
    causes: list[BaseException] = []

    def keeping(step: Callable) -> Callable:
        def keep(*arguments: Any) -> Any:
            try:
                return step(*arguments)
            except BaseException as error:
                causes.append(error)
                raise

        return keep

    _C.take_interrupt()
    try:
        yield keeping
    except _C.Error as error:
        if not causes:
            # If a signal arrives while the core runs, Python raises the exception of its handler where the next
            # callback begins, before the ``try`` in ``keep``. So ``causes`` does not have the exception.
            interrupt = _C.take_interrupt()
            if interrupt is not None:
                raise interrupt from error
            raise
        if not isinstance(causes[0], Exception):
            raise causes[0] from error
        raise error from causes[0]
