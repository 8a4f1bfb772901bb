"""The list of planted mistakes fits the sources: run.py itself takes half an hour, and is run by hand."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/mutants"))
import run as mutants  # noqa: E402


@pytest.mark.row("V1")
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_sources(mutant):
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1


def test_all_mutants_are_in_the_table():
    table = (ROOT / "tests/mutants/README.md").read_text()
    rows = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(mutant.name for mutant in mutants.MUTANTS)
