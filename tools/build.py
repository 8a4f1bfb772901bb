#!/usr/bin/env python3
"""Builds zeroshard into the environment of the Python that runs this, with one line of progress.

    .venv/bin/python tools/build.py [--target package] [--lm OFF] [--unity OFF]

`front` is the Python package and the command zeroshard, without what that starts for `train` and `generate`. `package`
is what a user runs: the Python package and the programs. `all` has the C++ tests, benchmarks and examples,
too. `--lm OFF` leaves out lm/: tokenizer, data, models, training loop and generation. `--unity OFF` compiles each file
by itself: after a change of one file the next build is shorter, and a clean one longer. What pip and
the compilers print goes to build/build.log; of a build that failed the errors are shown.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import fcntl
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOG = ROOT / "build" / "build.log"
STEP = re.compile(r"\[(\d+)/(\d+)\] ")
SHOWN_LINES = 60
LOCK = LOG.with_name("build.lock")
TARGETS = {"front": "front_parts", "package": "package_parts", "all": "all"}  # of CMake


class Progress:
    """On a terminal one line that changes; elsewhere a line for each tenth."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._tenth = -1
        self._rewrites = sys.stdout.isatty()

    def show(self, done: int, count: int) -> None:
        if not self._rewrites and done * 10 // count == self._tenth:
            return
        self._tenth = done * 10 // count
        text = f"build: {done} of {count} steps, {time.monotonic() - self._begin:.0f} s"
        print(f"\r{text}" if self._rewrites else text, end="" if self._rewrites else "\n", flush=True)

    def end(self) -> None:
        if self._rewrites and self._tenth >= 0:
            print()


def errors_of(text: str) -> str:
    """What of a log tells why the build failed: what ninja printed of steps that failed, else the end."""
    lines = [line.strip() for line in text.splitlines()]
    failed = [index for index, line in enumerate(lines) if line.startswith("FAILED: ")]
    if not failed:
        return "\n".join(lines[-SHOWN_LINES:])
    shown = []
    for index in failed:
        shown.append(lines[index])
        for line in lines[index + 2 :]:  # without the command
            if STEP.match(line) or line.startswith(("FAILED: ", "ninja: ")) or len(shown) >= SHOWN_LINES:
                break
            shown.append(line)
    return "\n".join(shown)


@contextlib.contextmanager
def only_build():
    """Raises ``BlockingIOError`` while another build of this clone is under way. Its end, however it ends, unlocks."""
    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def build(target: str, lm: str, unity: str) -> int:
    options = [
        "-v",
        "--disable-pip-version-check",
        "--no-build-isolation",
        "--no-deps",
        f"-Cbuild.targets={TARGETS[target]}",
        f"-Ccmake.define.ZEROSHARD_WITH_LM={lm}",
        f"-Ccmake.define.ZEROSHARD_UNITY={unity}",
    ]
    progress = Progress()
    command = [sys.executable, "-m", "pip", "install", *options, "-e", "."]
    with (
        LOG.open("w") as log,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as pip,
    ):
        for line in pip.stdout:
            log.write(line)
            if step := STEP.search(line):
                progress.show(int(step[1]), int(step[2]))
    progress.end()
    if pip.returncode != 0:
        print(errors_of(LOG.read_text()), file=sys.stderr)
        print(f"the build has failed; all that it printed is in {os.path.relpath(LOG)}", file=sys.stderr)
        return 1
    # An editable install has no bytecode, and where PYTHONDONTWRITEBYTECODE is set each interpreter would compile anew.
    for folder in ("python/zeroshard", "tests/python"):
        compileall.compile_dir(ROOT / folder, quiet=1)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=["front", "package", "all"], default="all")
    parser.add_argument("--lm", choices=["ON", "OFF"], default="ON")
    parser.add_argument("--unity", choices=["ON", "OFF"], default="ON")
    arguments = parser.parse_args()
    try:
        with only_build():
            return build(arguments.target, arguments.lm, arguments.unity)
    except BlockingIOError:
        log = os.path.relpath(LOG)
        print(
            f"another build of this clone is under way ({log} shows how far it is): wait for its end", file=sys.stderr
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
