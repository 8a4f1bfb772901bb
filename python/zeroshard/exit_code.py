"""Gives a process that ends normally the exit code 1, so that its supervisor learns of a problem."""

from __future__ import annotations

import os
import sys
from multiprocessing.util import Finalize


def end_with_code_1() -> None:
    """Makes this process end with code 1, even if nothing else fails."""
    # With a priority below 0, this runs after everything else that waits for the end of the process.
    Finalize(None, _end, exitpriority=-1)


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
