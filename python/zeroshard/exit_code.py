"""Gives a process that ends normally the exit code 1, so that its supervisor learns of a problem."""

from __future__ import annotations

import os
import sys
from multiprocessing.util import Finalize


def end_with_code_1() -> None:
    """Makes this process end with code 1, even if nothing else fails."""
    # multiprocessing calls finalizers with a priority below 0 last, after it has waited for its child processes.
    Finalize(None, _end, exitpriority=-1)


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
