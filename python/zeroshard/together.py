"""Raises the error of one rank on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import _C
from .run import Run


def together(run: Run, step: Callable[[], None], call: str) -> None:
    """Calls ``step``. If it raises on any rank, every rank raises the error of the lowest such rank. Collective.

    ``call`` is the name of the user's call. It is in the error if other ranks call something else.
    """
    with naming_causes() as keeping:
        step = keeping(step)
        run.core.together(step, call)


@contextmanager
def naming_causes() -> Iterator[Callable[[Callable], Callable]]:
    """Surrounds a call of the core.

    Yields a function that wraps callbacks, so that their exceptions are kept as causes. The core sends the text of a
    callback's exception to all ranks. On the rank of that callback, the exception itself becomes the cause of the
    core's error. If the exception is not an ``Exception``, as for Ctrl-C, it is raised instead of the core's error.
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
            # If a signal arrives while the core runs, its exception is raised where the callback begins, before the
            # ``try``.
            interrupt = _C.take_interrupt()
            if interrupt is not None:
                raise interrupt from error
            raise
        if not isinstance(causes[0], Exception):
            raise causes[0] from error
        raise error from causes[0]
