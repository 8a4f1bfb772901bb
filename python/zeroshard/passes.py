"""Makes a backward pass end the same way on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import _C
from .hooks import explaining_sharded_parameters


@contextmanager
def backward_pass(core: _C.Engine, sync: bool) -> Iterator[None]:
    """Around ``loss.backward()``. All ranks learn of an exception that it raises, and discard the step's gradients.

    The same holds for an interruption just before or after its end: code that catches it begins the step again.
    """
    core.begin_backward(sync)
    has_ended = False
    try:
        with explaining_sharded_parameters():
            yield
        has_ended = True
        core.end_backward()
    except BaseException as error:
        # Autograd makes a RuntimeError of the exception of a hook.
        is_of_ranks = (
            type(error) is RuntimeError and core.backward_comm_error and core.backward_comm_error in str(error)
        )
        if not has_ended or not isinstance(error, Exception):
            core.fail_backward(f"{type(error).__name__}: {error}")
        if is_of_ranks:
            raise _C.CommError(str(error)) from error
        raise
