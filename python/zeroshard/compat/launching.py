"""Implements ``deepspeed.launcher.runner``: its constants, and DeepSpeed's launcher as a function."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from .alias import BIN

DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
DEEPSPEED_ENVIRONMENT_PATHS = [os.path.expanduser("~"), "."]

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(args: Sequence[str] | None = None) -> None:
    """Runs the program ``deepspeed`` with ``args``, by default with the arguments of this process.

    Returns if the program ends with code 0. Otherwise raises ``SystemExit`` with the program's exit code, or with 128
    plus the number of the signal that ended it. If the main thread calls this function, the program also gets the
    signals of ``_FORWARDED`` that this process gets meanwhile.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    command = [os.path.join(BIN, "deepspeed"), *(sys.argv[1:] if args is None else args)]
    received: list[int] = []  # signals that arrive before the program has begun
    send = received.append

    def forward(number: int, _: Any) -> None:
        send(number)

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, forward) for number in (_FORWARDED if is_main else ())}
    try:
        program = subprocess.Popen(command)
        send = program.send_signal
        for number in received:
            send(number)
        code = program.wait()
    finally:
        for number, action in before.items():
            signal.signal(number, signal.SIG_DFL if action is None else action)
    if code != 0:
        sys.exit(code if code > 0 else 128 - code)
