"""Wraps methods of other libraries so that they work with sharded parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_WRAPPED = "_zeroshard_wraps"


def wrap_once(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Makes ``owner.name(...)`` call ``instead(own, ...)``, where ``own`` is the original. A second call does nothing.

    A call also does nothing if ``owner`` is None or has no such attribute. In that case the library is not imported, or
    has another version.
    """
    own = getattr(owner, name, None)
    if own is None or hasattr(own, _WRAPPED):
        return

    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        return instead(own, *args, **kwargs)

    setattr(call, _WRAPPED, True)
    setattr(owner, name, call)
