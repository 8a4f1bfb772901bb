#!/usr/bin/env python3
"""The twenty slowest C++ tests of the last run of ctest: `slowest_tests.py BUILD`."""

import re
import sys
from pathlib import Path

TEST = re.compile(r"\[       OK \] (\S+?)(?:, where .*)? \((\d+) ms\)")


def main() -> None:
    log = Path(sys.argv[1]) / "Testing" / "Temporary" / "LastTest.log"
    if not log.exists():
        sys.exit(f"slowest_tests: there is no {log}: run ctest first")
    tests = [(int(ms), name) for name, ms in TEST.findall(log.read_text(errors="replace"))]
    print("slowest C++ tests:")
    for ms, name in sorted(tests, reverse=True)[:20]:
        print(f"{ms / 1000:8.2f} s  {name}")


if __name__ == "__main__":
    main()
