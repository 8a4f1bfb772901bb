"""What `make test` leaves to `make test-all`."""

import ast
import functools
import random

import pytest
import sample
from built import TESTS

FILES = {path.name: path for path in TESTS.rglob("test_*.py")}


@functools.cache
def functions_of(name):
    assert name in FILES, f"{name} does not exist"
    return {node.name for node in ast.parse(FILES[name].read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("seed", range(20))
def test_every_value_of_every_parameter_occurs(seed):
    generator = random.Random(seed)
    names = "abcd"[: generator.randint(1, 4)]
    cases = [{(name, generator.randint(0, 4)) for name in names} for _ in range(generator.randint(1, 60))]
    found = sample.sampled("a test", cases, 0)
    assert set().union(*(cases[i] for i in found)) == set().union(*cases)
    assert found == sample.sampled("a test", cases, 0), "it must not depend on chance: workers collect for themselves"
    assert len(found) <= len(set().union(*cases))


@pytest.mark.parametrize("seconds,most", [(0.1, 5), (0.16, 3), (0.25, 2), (0.4, 1), (40, 1)])
def test_a_test_runs_as_many_cases_as_its_time_allows(seconds, most):
    cases = [{("ranks", ranks), ("stage", stage)} for ranks in (1, 2, 3, 4, 7) for stage in range(4)]
    found = sample.sampled("a test", cases, seconds)
    assert len(found) == most
    assert len(set().union(*(cases[i] for i in found))) == min(9, 2 * most), "a value came again while one was missing"
    drawn = {sample.sampled(f"test {number}", cases, 40)[0] for number in range(200)}
    assert drawn == set(range(len(cases))), "some case is drawn by no test's name"


def test_what_takes_long_exists():
    """A test with another name would run whole again."""
    for test in sample.known_seconds():
        file, _, name = test.partition("::")
        assert name in functions_of(file), f"{test} in seconds.json does not exist"


def test_what_is_left_out_has_a_test_that_stands_in_for_it():
    for name, tests in sample.LEFT_OUT.items():
        for test, instead in tests.items():
            path, _, instead = instead.rpartition("::")
            assert test in functions_of(name), f"{name}::{test} does not exist"
            assert instead in functions_of(path or name), f"{instead} does not exist"
            assert instead not in sample.LEFT_OUT.get(path or name, ()), f"{instead} is left out, too"
