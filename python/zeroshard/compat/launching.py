"""``deepspeed.launcher.runner``: its constants, and DeepSpeed's launcher as a function."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .alias import BIN

DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
DEEPSPEED_ENVIRONMENT_PATHS = [os.path.expanduser("~"), "."]


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Becomes the program ``deepspeed`` with these arguments, by default those of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    program = os.path.join(BIN, "deepspeed")
    os.execv(program, [program, *(sys.argv[1:] if args is None else args)])
