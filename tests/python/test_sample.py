"""What `make test` leaves to `make test-all`."""

import ast
import random
from pathlib import Path

import pytest
import sample

HERE = Path(__file__).parent


def functions_of(path):
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("seed", range(20))
def test_every_value_of_every_parameter_occurs(seed):
    generator = random.Random(seed)
    names = "abcd"[: generator.randint(1, 4)]
    cases = [{(name, generator.randint(0, 4)) for name in names} for _ in range(generator.randint(1, 60))]
    found = sample.sampled("a test", cases)
    assert set().union(*(cases[i] for i in found)) == set().union(*cases)
    assert found == sample.sampled("a test", cases), "it must not depend on chance: workers collect for themselves"
    assert len(found) <= len(set().union(*cases))


def test_what_is_left_out_has_a_test_that_stands_in_for_it():
    for name, tests in sample.LEFT_OUT.items():
        for test, instead in tests.items():
            path, _, instead = instead.rpartition("::")
            assert test in functions_of(HERE / name), f"{name}::{test} does not exist"
            assert instead in functions_of(HERE / (path or name)), f"{instead} does not exist"
            assert instead not in sample.LEFT_OUT.get(path or name, ()), f"{instead} is left out, too"
