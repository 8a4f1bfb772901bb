"""Where things are: the repository, these tests, and the programs that the build leaves."""

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parents[1]
BUILD = Path(os.environ.get("ZEROSHARD_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()
ZEROSHARD = BUILD / "cli" / "zeroshard"
ZEROSHARD_TORCH = BUILD / "cli" / "zeroshard-torch"
LM = BUILD / "lm" / "libzs_data.a"  # there where lm/ is built, whose commands zeroshard then has


def needs(*programs: Path) -> pytest.MarkDecorator:
    """Skips where one of them is missing."""
    names = " or ".join(map(str, programs))
    missing = not all(program.exists() for program in programs)
    return pytest.mark.skipif(missing, reason=f"{names} is not built: `make build`, or set ZEROSHARD_BUILD_DIR")
