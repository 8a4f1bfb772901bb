"""What builds and loads zeroshard."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys

import pytest
from built import REPOSITORY

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
    spec = importlib.util.spec_from_file_location("zeroshard_build", REPOSITORY / "tools" / "build.py")
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


def test_of_two_builds_at_once_one_says_that_there_is_another(tmp_path):
    (tmp_path / "tools").mkdir()
    shutil.copy(REPOSITORY / "tools/build.py", tmp_path / "tools")
    (tmp_path / "build").mkdir()
    with (tmp_path / "build/build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([sys.executable, "tools/build.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "", done
    assert done.stderr.startswith("another build of this clone is under way (build/build.log")
    assert not (tmp_path / "build/build.log").exists()


@pytest.mark.parametrize("free_gb", [7, 8])
def test_a_disk_that_is_too_small_is_told_before_anything_is_downloaded(tmp_path, free_gb):
    (tmp_path / "clone/tools").mkdir(parents=True)
    shutil.copy(REPOSITORY / "tools/setup.sh", tmp_path / "clone/tools")
    for name, line in {
        "df": f"echo Avail; echo {free_gb * 1024**2 + 5}",
        "c++": "cat >/dev/null",
        "apt-get": "exit 9",
    }.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable}
    done = subprocess.run(["tools/setup.sh"], cwd=tmp_path / "clone", env=environment, capture_output=True, text=True)
    small = f"setup: 7 GB are free in {tmp_path}/clone, and a fresh clone needs 8 GB"
    assert (small in done.stderr) == (free_gb == 7), done
    assert done.returncode == (1 if free_gb == 7 else 0), done
