#!/usr/bin/env python3
"""Runs ctest, and then those tests that failed again, alone, up to N times each: `run_ctest.py N --test-dir DIR ...`.

All behind N is given to ctest. A test that passes then is printed as "FLAKY name". What ctest printed last stays last,
and its exit code is that of this program. Where a sanitizer has reported something nothing is run again: it found an
error whenever it finds one.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

MOST_FAILED = 5  # more say that something is broken
SANITIZED = re.compile(rb"(Address|Leak|Thread|UndefinedBehavior)Sanitizer|: runtime error: ")
PASSED = re.compile(r"\s*(?:\d+/\d+ )?Test +#\d+: (\S+) \.*\s+Passed ")


def failed_tests(logs: Path) -> list[str]:
    listed = logs / "LastTestsFailed.log"
    return [line.partition(":")[2] for line in listed.read_text().split()] if listed.exists() else []


def reported(logs: Path, tests: list[str]) -> list[str]:
    """Those in whose output a sanitizer says something."""
    outputs = {}
    for part in re.split(rb"^\d+/\d+ Testing: ", (logs / "LastTest.log").read_bytes(), flags=re.MULTILINE)[1:]:
        name, _, output = part.partition(b"\n")
        outputs[name.decode().strip()] = output
    return [test for test in tests if SANITIZED.search(outputs.get(test, b""))]


def run_again(command: list[str], times: int) -> int:
    command = [*command, "--rerun-failed", "--output-on-failure", "-j1", "--repeat", f"until-pass:{times}"]
    found = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stdout:
            print(line, end="")
            found = found or SANITIZED.search(line.encode()) is not None
            if passed := PASSED.match(line):
                print(f"FLAKY {passed[1]}")
            sys.stdout.flush()
    if found and process.returncode == 0:
        print("a sanitizer has found an error in a test that was run again")
    return 1 if found else process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("again", type=int, metavar="N", help="how often a test that failed is run again; 0: never")
    parser.add_argument("--test-dir", required=True)
    arguments, rest = parser.parse_known_args()
    if any(option.startswith("--stop-on-failure") for option in rest):
        parser.error("--stop-on-failure leaves tests out, and a flaky one would hide them")
    logs = Path(arguments.test_dir) / "Testing" / "Temporary"
    (logs / "LastTestsFailed.log").unlink(missing_ok=True)
    command = ["ctest", "--test-dir", arguments.test_dir]
    code = subprocess.run([*command, *rest], check=False).returncode
    failed = failed_tests(logs)
    if code == 0 or not failed or arguments.again == 0:
        return code
    if len(failed) > MOST_FAILED or reported(logs, failed):
        return code
    print(f"\nrun again, alone, up to {arguments.again} times each: {' '.join(failed)}", flush=True)
    return run_again(command, arguments.again)


if __name__ == "__main__":
    sys.exit(main())
