"""What a world leaves behind when it ends: nothing."""

import os
import time

import pytest

END_S = 15  # by then every rank has ended


@pytest.fixture(autouse=True)
def nothing_left():
    """No file of a world stays in /dev/shm."""
    before = set(os.listdir("/dev/shm"))
    yield
    left = {name for name in set(os.listdir("/dev/shm")) - before if "zeroshard" in name or "torch" in name}
    deadline = time.monotonic() + END_S
    while left and time.monotonic() < deadline:  # tests that run beside this one may have some for a moment
        time.sleep(0.05)
        left &= set(os.listdir("/dev/shm"))
    assert not left
