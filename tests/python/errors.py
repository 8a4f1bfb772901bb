"""What an error tells the caller."""

from collections.abc import Callable
from typing import Any


def message_of(call: Callable[[], Any]) -> str | None:
    """The type and the text of the error that a call raises, or None."""
    try:
        call()
    except (RuntimeError, ValueError) as error:  # all of zeroshard's are one of these
        return f"{type(error).__name__}: {error}"
    return None


def text_of(call: Callable, *arguments: Any) -> str | None:
    """The text of the error that a call raises, or None."""
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - it is told
        return str(error)
    return None
