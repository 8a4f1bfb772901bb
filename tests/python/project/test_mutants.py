"""The list of planted mistakes fits the sources: run.py itself takes half an hour, and is run by hand."""

import os
import signal
import subprocess
import sys

import pytest
from built import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests/mutants"))
import run as mutants  # noqa: E402


@pytest.mark.row("V1")
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_sources(mutant):
    assert (REPOSITORY / mutant.file).read_text().count(mutant.old) == 1


def test_all_mutants_are_in_the_table():
    table = (REPOSITORY / "tests/mutants/README.md").read_text()
    rows = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(mutant.name for mutant in mutants.MUTANTS)


# Workers that wait for a program which does not end.
INTERRUPTED = f"""
import sys
sys.path.insert(0, {str(REPOSITORY / "tests/mutants")!r})
import run

class Tree:
    def __init__(self, path, programs): path.mkdir()
    def build(self, *programs, jobs=1): return None
    def check_without_mutants(self, program, tests): pass
    def check(self, mutant):
        run.tell("begun")
        run.run(["sh", "-c", "sleep 100 & wait"])

run.Tree = Tree
sys.argv = ["run.py", "--workers", "2"]
run.main()
"""


@pytest.mark.row("V1")
def test_an_interrupted_run_ends_at_once_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        for _ in range(2):
            assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "KeyboardInterrupt" in error and output == "" and not list(tmp_path.iterdir())
