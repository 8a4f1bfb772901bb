"""The tables of docs/reliability.md name every row once each, and tests that exist and are of that row."""

import ast
import functools
import re

import pytest
from built import REPOSITORY, TESTS
from conftest import ROWS


@functools.cache
def table(heading):
    """Of the table below this heading: row -> the text of its line."""
    text = (REPOSITORY / "docs/reliability.md").read_text().partition(heading)[2].partition("\n## ")[0]
    lines = re.findall(r"^\| ([A-Z]\d+) \|(.*)\|$", text, re.M)
    assert len(lines) == len(dict(lines)), "a row occurs twice"
    return dict(lines)


@functools.cache
def marked():
    """file::test -> the rows it is marked with."""
    found = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                calls = [call for call in node.decorator_list if isinstance(call, ast.Call)]
                marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.row"]
                found[f"{path.name}::{node.name}"] = {ast.literal_eval(arg) for mark in marks for arg in mark.args}
    return found


@functools.cache
def gtest_names():
    sources = (REPOSITORY / "tests").rglob("*_test.cpp")
    return {
        f"{suite}.{name}"
        for path in sources
        for suite, name in re.findall(r"^TEST(?:_[FP])?\((\w+), (\w+)\)", path.read_text(), re.M)
    }


def test_every_row_is_there():
    assert list(table("# Faults")) == list(table("## The tests of each row")) == list(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_of_a_row_exist(row):
    text, tests, programs = table("## The tests of each row")[row], marked(), gtest_names()
    named = re.findall(r"`(test_\w+\.py::\w+)`", text)
    suites = re.findall(r"`([A-Z]\w+\.[A-Z]\w+)`", text)
    for name in named:
        assert name in tests, f"{name} does not exist"
        assert row in tests[name], f"{name} is not marked with row {row}"
    for name in suites:
        assert name in programs, f"{name} does not exist"
    assert named or not any(row in rows for rows in tests.values()), f"tests are marked with {row}, none is named"
    assert named or suites or "`make " in text or "run.py`" in text or "**not covered**" in text
