"""Options and markers of the Python tests."""

import os
import signal

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # whether there is a GPU is asked without CUDA: a rank may hide it
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded: ranks inherit it, and there are more ranks than cores

import pytest
import warm
import world

# Rows of the table in docs/reliability.md; those without a test here are tested in C++, or not at all.
KILLS = ("K1", "K2", "K3", "K4", "K5", "K6", "K7", "K8", "K9", "K10", "P1", "H1", "H2", "H3", "H4", "H5")
DISKS, FILES = ("D1", "D2", "D3", "D4"), ("C1", "C2")
CODE = ("F1", "F2", "F3", "S1", "S2", "S3")
STATE = ("W1", "W2", "W3", "R1", "N1", "N2", "N3", "T1", "U1", "U3", "M1")
JOBS = ("L1", "L2", "L3", "X1", "X2", "X3", "X4", "O1", "O2", "V1")
ROWS = KILLS + DISKS + FILES + CODE + STATE + JOBS


def pytest_addoption(parser, pluginmanager):
    pluginmanager.import_plugin("again")
    pluginmanager.import_plugin("sample")
    parser.addoption("--release", action="store_true", help="the counts of a release, and all matrices (hours)")
    parser.addoption("--row", action="append", choices=ROWS, help="--row=K1: only that row's tests")


def pytest_configure(config):
    if config.getoption("--release"):
        os.environ.setdefault("ZEROSHARD_FAULT_RUNS", "200")
    if config.getoption("--sample"):
        warm.lead()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and so in every rank
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell without job control starts with "&" so
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "matrix: large matrices; run by -m matrix or --release alone")
    config.addinivalue_line("markers", "fault: ranks that die, stop, diverge or are misconfigured")
    config.addinivalue_line("markers", "row(name, ...): rows of the table in docs/reliability.md that a test is of")
    config.addinivalue_line("markers", "idle_ranks(reason): some rank may own nothing of the models; see owners.py")


def rows_of(item):
    """The rows of docs/reliability.md that a test is of."""
    return {name for mark in item.iter_markers("row") for name in mark.args}


def pytest_collection_modifyitems(config, items):
    unknown = {name for item in items for name in rows_of(item)} - set(ROWS)
    if unknown:
        raise pytest.UsageError(f"no row of docs/reliability.md: {sorted(unknown)}")
    if asked := set(config.getoption("--row") or []):
        config.hook.pytest_deselected(items=[item for item in items if not asked & rows_of(item)])
        items[:] = [item for item in items if asked & rows_of(item)]
    if config.getoption("--release") or "matrix" in config.getoption("-m"):
        return
    for item in items:
        if item.get_closest_marker("matrix"):
            item.add_marker(pytest.mark.skip(reason="run by -m matrix or --release"))


@pytest.hookimpl(tryfirst=True)  # before fixtures, which may start worlds
def pytest_runtest_setup(item):
    mark = item.get_closest_marker("idle_ranks")
    if mark and not any(isinstance(reason, str) and reason for reason in mark.args):
        raise pytest.UsageError(f"{item.nodeid}: idle_ranks needs a reason")
    world.allows_idle_ranks = mark is not None


@pytest.fixture(scope="session")
def release(request):
    """Whether the counts of a release are asked for."""
    return request.config.getoption("--release")
