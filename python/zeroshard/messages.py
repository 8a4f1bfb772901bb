"""Messages of a run on stderr."""

from __future__ import annotations

import sys


def log(message: str) -> None:
    print(f"[zeroshard] {message}", file=sys.stderr, flush=True)
