"""Options and markers of the Python tests."""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded: ranks inherit it, and there are more ranks than cores

import pytest


def pytest_addoption(parser):
    parser.addoption("--release", action="store_true", help="the full matrices and the counts of a release (hours)")


def pytest_configure(config):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and so in every rank
    config.addinivalue_line("markers", "matrix: large matrices; run by -m matrix or --release alone")
    config.addinivalue_line("markers", "fault: ranks that die, stop, diverge or are misconfigured")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--release") or "matrix" in config.getoption("-m"):
        return
    for item in items:
        if item.get_closest_marker("matrix"):
            item.add_marker(pytest.mark.skip(reason="run by -m matrix or --release"))


@pytest.fixture(scope="session")
def release(request):
    """Whether the counts of a release are asked for."""
    return request.config.getoption("--release")
