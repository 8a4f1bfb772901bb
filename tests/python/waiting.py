"""Waits for a condition, in tests and on ranks."""

import time


def wait_for(condition, what, seconds=10):
    """What `condition` returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)
    return value
