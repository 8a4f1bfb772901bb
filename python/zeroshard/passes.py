"""Makes a backward pass end in the same way on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import _C
from .hooks import explaining_sharded_parameters


@contextmanager
def backward_pass(
    core: _C.Engine, sync: bool, on_failure: Callable[[BaseException], None] | None = None
) -> Iterator[None]:
    """Surrounds ``loss.backward()``. If it raises, all ranks learn of the exception and discard the step's gradients.

    An interruption, such as by Ctrl-C, has the same effect even while the pass ends. Code that catches the interruption
    must begin the step anew. An error of ``core.end_backward()`` itself is only passed on. Before a rank tells the
    others of its exception, it calls ``on_failure``. If ranks can wait for one another in communicators that the engine
    does not know, ``on_failure`` must make these waits fail. ``CommError`` and ``IoError`` of the engine's hooks keep
    their class.
    """
    core.begin_backward(sync)
    has_ended = False
    try:
        with explaining_sharded_parameters():
            yield
        has_ended = True
        core.end_backward()
    except BaseException as error:
        of_hook = _class_of_hook_error(core, error)
        if not has_ended or not isinstance(error, Exception):
            if on_failure is not None:
                on_failure(error)
            core.fail_backward(f"{type(error).__name__}: {error}")
        if of_hook is not None:
            raise of_hook(str(error)) from error
        raise


def _class_of_hook_error(core: _C.Engine, error: BaseException) -> type[_C.Error] | None:
    """Returns the class that an error of the engine's hooks had before autograd made a RuntimeError of it.

    Returns None for other errors.
    """
    if type(error) is not RuntimeError:
        return None
    texts = ((_C.CommError, core.backward_comm_error), (_C.IoError, core.backward_io_error))
    return next((kind for kind, text in texts if text and text in str(error)), None)
