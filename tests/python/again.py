"""A plugin of pytest, `--again N`: a test that failed is run again, alone, in a process of its own, up to N times.

One that passes then is printed as "FLAKY name" and does not fail the run. Workers of pytest-xdist wait meanwhile.
"""

import fcntl
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

MOST_FAILED = 5  # so many tests of a worker that failed each time say that something is broken: no other is run again
MOST_SECONDS = 900  # of a test that is run again
KEPT = 4000  # characters of what a failed run printed


def pytest_addoption(parser):
    parser.addoption("--again", type=int, default=0, metavar="N", help="a test that failed is run again N times, alone")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    times = item.config.getoption("--again")
    if times == 0:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    with _turn(item, fcntl.LOCK_SH):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = [report for report in reports if report.failed]
    if failed and item.session.testsfailed < MOST_FAILED:
        outputs = []
        with _turn(item, fcntl.LOCK_EX):
            passes = _passes(item, times, outputs)
        if passes:
            reports = [_flaky(item, failed)]
        else:
            failed[-1].sections += [(f"run {number}, alone", text) for number, text in enumerate(outputs, 2)]
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@contextmanager
def _turn(item, how):
    """LOCK_EX: no other worker runs a test meanwhile. LOCK_SH: any may, but for those that wait for LOCK_EX."""
    if not hasattr(item.config, "workerinput"):
        yield
        return
    folder = Path(item.config.option.basetemp).parent  # which all workers have
    with open(folder / "again.next", "a+") as first, open(folder / "again.turn", "a+") as turn:
        fcntl.lockf(first, fcntl.LOCK_EX)  # else who waits for LOCK_EX might wait for ever
        fcntl.lockf(turn, how)
        fcntl.lockf(first, fcntl.LOCK_UN)
        yield


def _passes(item, times, outputs):
    """Whether one of so many runs passes; those that do not add what they printed."""
    options = ["-q", "-p", "no:cacheprovider"]
    options += [option for option in item.config.invocation_params.args if option == "--release"]
    for name, option in (("pythonwarnings", "-W"), ("override_ini", "-o")):
        for value in item.config.getoption(name) or []:
            options += [option, value]
    for _ in range(times):
        command = [sys.executable, "-m", "pytest", *options, item.nodeid]
        try:
            done = subprocess.run(
                command,
                cwd=item.config.rootpath,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=MOST_SECONDS,
            )
        except subprocess.TimeoutExpired:
            outputs.append(f"not done within {MOST_SECONDS} s")
            continue
        if done.returncode == 0 and re.search(r"\b1 passed\b", done.stdout):
            return True
        outputs.append((done.stdout + done.stderr)[-KEPT:])
    return False


def _flaky(item, failed):
    report = pytest.TestReport(
        item.nodeid, item.location, {}, "passed", None, "call", duration=sum(each.duration for each in failed)
    )
    report.first_failure = "\n".join(each.longreprtext + each.capstdout + each.capstderr for each in failed)
    return report


def pytest_report_teststatus(report):
    return ("flaky", "A", "FLAKY") if hasattr(report, "first_failure") else None


def pytest_terminal_summary(terminalreporter):
    reports = terminalreporter.stats.get("flaky", [])
    for report in reports:
        terminalreporter.section(f"failed, then passed alone: {report.nodeid}")
        terminalreporter.write_line(report.first_failure)
    for report in reports:
        terminalreporter.write_line(f"FLAKY {report.nodeid}")
