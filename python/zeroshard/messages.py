"""Prints messages of a run on stderr, and makes words for error messages."""

from __future__ import annotations

import sys


def log(message: str) -> None:
    print(f"[zeroshard] {message}", file=sys.stderr, flush=True)


def a_type(value: object) -> str:
    """Returns the name of the value's class with its article: "a Tensor", "an object"."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"
