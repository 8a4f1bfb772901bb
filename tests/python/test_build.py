"""What builds and loads zeroshard."""

import importlib.util
import pathlib

import pytest
from zeroshard import built_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOG = """
  *** Building project with Ninja...
  [1/9] Building CXX object src/a.o
  [2/9] Building CXX object src/b.o
  FAILED: [code=1] src/b.o
  /usr/bin/g++ -O3 -c b.cpp
  b.cpp: In function 'f':
  b.cpp:1:1: error: 'x' was not declared in this scope
  [3/9] Building CXX object src/c.o
  ninja: build stopped: subcommand failed.

  *** CMake build failed
  error: subprocess-exited-with-error
"""


def load_build():
    spec = importlib.util.spec_from_file_location("zeroshard_build", ROOT / "tools" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_build_that_failed_shows_its_errors_alone():
    assert load_build().errors_of(LOG).splitlines() == [
        "FAILED: [code=1] src/b.o",
        "b.cpp: In function 'f':",
        "b.cpp:1:1: error: 'x' was not declared in this scope",
    ]


def test_of_a_failure_of_something_else_the_end_is_shown():
    text = "\n".join([*map(str, range(100)), "no such package"])
    shown = load_build().errors_of(text).splitlines()
    assert shown[-1] == "no such package" and shown[0] == "41"


@pytest.mark.parametrize("found", ["2.12.0", "2.13.1+cpu", "2.1"])
def test_another_torch_is_refused_by_name(found):
    with pytest.raises(ImportError) as error:
        built_for.check_torch("2.13.0", found)
    assert f"was built for torch 2.13.0, and torch is {found}" in str(error.value)


@pytest.mark.parametrize("found", ["2.13.0", "2.13.0+cu130", "2.13.0a0+git1234", "2.13.0.dev20261123+cpu", "2.13.0rc1"])
def test_variants_of_a_torch_are_the_same(found):
    built_for.check_torch("2.13.0", found)


def test_an_installed_package_knows_its_torch():
    assert importlib.util.find_spec("zeroshard._built_for") is not None
