"""The exit code of a process that ends well but for something that a supervisor is to know."""

from __future__ import annotations

import os
import sys
from multiprocessing.util import Finalize


def end_with_code_1() -> None:
    """Lets this process end with the code 1, however well it goes on."""
    # Below 0: after everything else that waits for the end.
    Finalize(None, _end, exitpriority=-1)


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
