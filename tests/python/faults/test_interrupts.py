"""Ctrl-C ends a rank that waits for others, wherever it does, and the others learn of it."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest
import world
from built import TESTS

pytestmark = pytest.mark.fault
SCRIPT = str(TESTS / "waiting_rank.py")


@contextlib.contextmanager
def two_ranks(place, transport):
    port, claim = world.reserve_port()
    environment = os.environ | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONUNBUFFERED": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, place, transport],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
        claim.close()


@pytest.mark.parametrize(
    ("place", "times"), [("meet", 2), ("groups", 1), ("build", 1), ("step", 1), ("step", 2), ("save", 2)]
)
def test_ctrl_c_ends_a_rank_that_waits(place, times):
    for transport in ("auto", "process_group") if (place, times) == ("step", 1) else ("auto",):
        with two_ranks(place, transport) as (first, second):
            assert second.stdout.readline() == "ready\n"
            assert first.stdout.readline() == "waits\n"
            for _ in range(times):
                first.send_signal(signal.SIGINT)
            error = first.communicate(timeout=30)[1]
            assert first.returncode == -signal.SIGINT, (transport, error)
            assert "KeyboardInterrupt" in error or times == 2, error
            if place in ("meet", "groups"):
                continue
            error = second.communicate("\n", timeout=30)[1]
            assert second.returncode == 1 and "CommError" in error, (transport, error)
            told = "rank 0 was interrupted while it waited in collective #"
            assert told in error or (transport != "auto" and f"rank 0 (pid {first.pid}) died" in error), error
