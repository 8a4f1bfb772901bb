"""Errors of one rank, raised on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import _C
from .run import Run


def together(run: Run, step: Callable[[], None]) -> None:
    """Runs ``step``; when it raised on any rank, the first such rank's error is raised on every rank. Collective."""
    with naming_causes() as keeping:
        step = keeping(step)
        run.core.together(step)


@contextmanager
def naming_causes() -> Iterator[Callable[[Callable], Callable]]:
    """Around a call of the core whose callbacks are wrapped by what is yielded.

    The core tells all ranks what a callback raises, as text. Here that is the cause of the error or, where it is no
    error (Ctrl-C), raised itself.
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

    try:
        yield keeping
    except _C.Error as error:
        if not causes:
            raise
        if not isinstance(causes[0], Exception):
            raise causes[0] from error
        raise error from causes[0]
