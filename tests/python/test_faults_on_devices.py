"""As test_faults.py, on simulated devices: NCCL notices no rank that is gone, and compares nothing."""

import random
import signal

import pytest
import simulated
import world
from test_faults import (
    END_S,
    call_another_unit,
    disturb,
    evaluate_once_more,
    save_alone,
    skip_a_batch,
    skip_backward,
)

pytestmark = [pytest.mark.fault, simulated.needed]


@pytest.mark.row("U1")
@pytest.mark.parametrize(
    "case,stage,on",
    [
        (skip_backward, 0, "late"),
        (skip_backward, 3, "lazy"),
        (skip_a_batch, 3, "late"),
        (save_alone, 3, "lazy"),
        (evaluate_once_more, 3, "late"),
        (call_another_unit, 3, "lazy"),
    ],
)
def test_ranks_that_call_differently_on_devices(case, stage, on):
    ranks = world.run_ranks(3, case, stage=stage, transport="auto", on=on, timeout_s=40)
    for rank in ranks:
        assert rank.exit_code == 1 and rank.error.startswith("CommError") and "rank 1" in rank.error, rank
    assert max(rank.seconds for rank in ranks) < END_S


@pytest.mark.row("K1", "K5")
@pytest.mark.parametrize(
    "name,ranks,stage,on", [("SIGKILL", 3, 3, "lazy"), ("SIGKILL", 2, 1, "late"), ("SIGSTOP", 3, 3, "late")]
)
def test_a_device_whose_rank_dies_or_stops(name, ranks, stage, on):
    disturb(getattr(signal, name), stage, "auto", random.SystemRandom().randrange(1000), on=on, ranks=ranks)
