"""``deepspeed.launcher.runner``: its constants, and DeepSpeed's launcher as a function."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from .alias import BIN

DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
DEEPSPEED_ENVIRONMENT_PATHS = [os.path.expanduser("~"), "."]


def main(args: Sequence[str] | None = None) -> None:
    """Runs the program ``deepspeed`` with these arguments, by default those of this process.

    It returns when the program has ended well, and raises ``SystemExit`` with the program's exit code otherwise. The
    program gets the SIGTERM and SIGHUP of this process, and Ctrl-C from the terminal.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    program = subprocess.Popen([os.path.join(BIN, "deepspeed"), *(sys.argv[1:] if args is None else args)])
    actions = {
        signal.SIGINT: signal.SIG_IGN,
        signal.SIGTERM: lambda number, _: program.send_signal(number),
        signal.SIGHUP: lambda number, _: program.send_signal(number),
    }
    if threading.current_thread() is not threading.main_thread():
        actions = {}  # other threads set none
    before = {number: signal.signal(number, action) for number, action in actions.items()}
    try:
        code = program.wait()
    finally:
        for number, action in before.items():
            signal.signal(number, action)
    if code != 0:
        sys.exit(code if code > 0 else 128 - code)
