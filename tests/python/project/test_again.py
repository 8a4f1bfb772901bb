"""What CI does with a test that failed: planted tests that pass at their second or third run, or never."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from built import REPOSITORY, TESTS

RUN_CTEST = REPOSITORY / "tools" / "run_ctest.py"

PLANTED = """
import pathlib

import pytest


def runs(name):
    path = pathlib.Path(__file__).with_name(name)
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return len(path.read_text())


def test_fine():
    pass


@pytest.mark.parametrize("needed", [2, 3])
def test_flaky(needed):
    print("said before it failed")
    assert runs(f"runs{needed}") >= needed


@pytest.fixture
def shaky():
    assert runs("shaky") > 1


def test_setup(shaky):
    pass
"""
BROKEN = """

def test_broken():
    assert runs("broken") > 3


def test_no_more():
    if runs("skipped") > 1:
        pytest.skip("is not the same as passing")
    assert False
"""
WORKERS = ("-p", "xdist", "--numprocesses=2", "--dist=load", "--maxschedchunk=1")


def run_pytest(folder, *options):
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "again", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("options", [(), WORKERS], ids=["one process", "workers"])
def test_flaky_tests_of_pytest_are_named_and_fail_no_run(tmp_path, options):
    (tmp_path / "test_planted.py").write_text(PLANTED)
    done = run_pytest(tmp_path, "--again", "2", "-k", "fine or flaky", *options)
    assert done.returncode == 0, done.stdout
    names = ["test_flaky[2]", "test_flaky[3]"]
    assert sorted(re.findall(r"^FLAKY test_planted.py::(.*)$", done.stdout, re.MULTILINE)) == names
    assert re.fullmatch(r"=+ 1 passed, (1 deselected, )?2 flaky in .*", done.stdout.splitlines()[-1]), done.stdout
    assert "said before it failed" in done.stdout and "assert 1 >= 2" in done.stdout


BESIDE = """
import pathlib
import time

HERE = pathlib.Path(__file__).parent


def wait_for(name, seconds=60):
    end = time.monotonic() + seconds
    while not (HERE / name).exists() and time.monotonic() < end:
        time.sleep(0.01)
    return (HERE / name).exists()


def test_that_fails_beside_another():
    if not (HERE / "failed").exists():
        assert wait_for("began")
        (HERE / "failed").touch()
        assert False
    (HERE / "again").touch()
    assert (HERE / "ended").exists() and not (HERE / "next").exists()


def test_beside_it():
    (HERE / "began").touch()
    assert wait_for("failed")
    assert not wait_for("again", seconds=3)
    (HERE / "ended").touch()


def test_after_that():
    (HERE / "next").touch()
"""


def test_a_test_is_run_again_while_no_worker_runs_another(tmp_path):
    (tmp_path / "test_planted.py").write_text(BESIDE)
    done = run_pytest(tmp_path, "--again", "1", *WORKERS)
    assert done.returncode == 0, done.stdout
    assert "FLAKY test_planted.py::test_that_fails_beside_another" in done.stdout.splitlines()


@pytest.mark.parametrize("options", [(), WORKERS], ids=["one process", "workers"])
def test_three_failures_of_a_test_of_pytest_fail_the_run(tmp_path, options):
    (tmp_path / "test_planted.py").write_text(PLANTED + BROKEN)
    done = run_pytest(tmp_path, "--again", "2", "-k", "not flaky", *options)
    assert done.returncode == 1, done.stdout
    assert (tmp_path / "broken").read_text() == "xxx"
    assert re.findall(r"^FLAKY test_planted.py::(.*)$", done.stdout, re.MULTILINE) == ["test_setup"]
    assert "run 3, alone" in done.stdout
    assert re.fullmatch(r"=+ 2 failed, 1 passed, (2 deselected, )?1 flaky in .*", done.stdout.splitlines()[-1]), (
        done.stdout
    )


def test_without_the_option_a_test_is_run_once(tmp_path):
    (tmp_path / "test_planted.py").write_text(PLANTED)
    done = run_pytest(tmp_path)
    assert done.returncode == 1 and "FLAKY" not in done.stdout
    assert (tmp_path / "runs2").read_text() == "x"


def run_ctest(folder, again, **needed):
    """With a test for each of `needed`, which passes from its so-many-th run on; 0: is fine."""
    lines = []
    for name, runs in needed.items():
        script = f"echo x >> {folder}/{name}; echo said by {name}; test $(wc -l < {folder}/{name}) -ge {runs}"
        lines.append(f'add_test({name} "/bin/sh" "-c" "{script}")'.replace("$(", "\\$("))
    (folder / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")
    command = [sys.executable, str(RUN_CTEST), str(again), "--test-dir", str(folder), "-j2", "--output-on-failure"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def runs_of(folder, name):
    return len((folder / name).read_text().split())


needs_ctest = pytest.mark.skipif(not shutil.which("ctest"), reason="there is no ctest")


@needs_ctest
def test_flaky_tests_of_ctest_are_named_and_fail_no_run(tmp_path):
    done = run_ctest(tmp_path, 2, fine=1, second=2, third=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^FLAKY (.*)$", done.stdout, re.MULTILINE) == ["second", "third"]
    assert [runs_of(tmp_path, name) for name in ("fine", "second", "third")] == [1, 2, 3]
    assert "100% tests passed, 0 tests failed out of 2" in "".join(done.stdout.splitlines(keepends=True)[-4:])
    assert "said by second" in done.stdout


@needs_ctest
def test_three_failures_of_a_test_of_ctest_fail_the_run(tmp_path):
    done = run_ctest(tmp_path, 2, fine=1, second=2, never=9)
    assert done.returncode != 0
    assert re.findall(r"^FLAKY (.*)$", done.stdout, re.MULTILINE) == ["second"]
    assert [runs_of(tmp_path, name) for name in ("fine", "second", "never")] == [1, 2, 3]
    assert "1 tests failed out of 2" in done.stdout


@needs_ctest
def test_a_fine_run_of_ctest_and_one_that_is_not_to_be_repeated_end_as_they_do(tmp_path):
    done = run_ctest(tmp_path, 2, fine=1)
    assert done.returncode == 0 and "100% tests passed, 0 tests failed out of 1" in done.stdout
    done = run_ctest(tmp_path, 0, fine=1, second=2)
    assert done.returncode != 0 and "FLAKY" not in done.stdout and runs_of(tmp_path, "second") == 1


@needs_ctest
def test_what_a_sanitizer_found_is_no_flake(tmp_path):
    done = run_ctest(tmp_path, 2, fine=1, ThreadSanitizer=2)
    assert done.returncode != 0 and "FLAKY" not in done.stdout
    assert runs_of(tmp_path, "ThreadSanitizer") == 1


@needs_ctest
def test_what_a_sanitizer_finds_when_a_test_is_run_again_is_no_flake(tmp_path):
    log, script = tmp_path / "late", tmp_path / "script"
    script.write_text(
        f"""echo x >> {log}
        runs=$(wc -l < {log})
        test $runs -eq 2 && echo 'WARNING: ThreadSanitizer: data race'
        test $runs -ge 3
        """
    )
    (tmp_path / "CTestTestfile.cmake").write_text(f'add_test(late "/bin/sh" "{script}")\n')
    command = [sys.executable, str(RUN_CTEST), "2", "--test-dir", str(tmp_path), "--output-on-failure"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and runs_of(tmp_path, "late") == 3, done.stdout


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_the_command_of_ci_is_understood():
    """pytest takes the 2 of `--again 2` for a path until it knows the option, and then finds no conftest.py."""
    told = subprocess.run(["make", "-n", "test", "AGAIN=2"], cwd=RUN_CTEST.parents[1], capture_output=True, text=True)
    options = re.search(r"-m pytest(.*)$", told.stdout, re.MULTILINE)[1].split()
    others = ["--ignore-glob", "*/test_a[!g]*.py", "--ignore-glob", "*/test_[!a]*.py"]  # which take long to collect
    command = [sys.executable, "-m", "pytest", *options, *others, "--collect-only", "-q", "-k", "command_of_ci_is"]
    done = subprocess.run(command, cwd=RUN_CTEST.parents[1], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "1/" in done.stdout, done.stdout + done.stderr
