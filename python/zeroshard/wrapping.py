"""Methods of other libraries that do more where parameters are sharded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_WRAPPED = "_zeroshard_wraps"


def wrap_once(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """``owner.name(...)`` becomes ``instead(own, ...)``, where ``own`` is what it was. A second time changes nothing.

    Nothing happens if ``owner`` is None or has no such attribute: the library is not imported, or is another version.
    """
    own = getattr(owner, name, None)
    if own is None or hasattr(own, _WRAPPED):
        return

    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        return instead(own, *args, **kwargs)

    setattr(call, _WRAPPED, True)
    setattr(owner, name, call)
