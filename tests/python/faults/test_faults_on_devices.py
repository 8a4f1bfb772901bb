"""As test_faults.py, on simulated devices: NCCL notices no rank that is gone, and compares nothing."""

import random
import signal

import pytest
import simulated
import world
import zeroshard
from leftovers import END_S
from test_faults import (
    call_another_unit,
    configuration,
    disturb,
    evaluate_once_more,
    make_model,
    save_alone,
    skip_a_batch,
    skip_backward,
)
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = [pytest.mark.fault, simulated.needed]


@pytest.mark.row("U1")
@pytest.mark.parametrize(
    "case,stage,on",
    [
        (skip_backward, 0, "late"),
        (skip_backward, 3, "lazy"),
        (skip_a_batch, 3, "late"),
        (save_alone, 3, "lazy"),
        pytest.param(
            evaluate_once_more, 3, "late", marks=pytest.mark.idle_ranks("units of one size; see test_faults.Small")
        ),
        (call_another_unit, 3, "lazy"),
    ],
)
def test_ranks_that_call_differently_on_devices(case, stage, on):
    ranks = world.run_ranks(3, case, stage=stage, transport="auto", on=on, timeout_s=40)
    for rank in ranks:
        assert rank.exit_code == 1 and "rank 1" in rank.error, rank  # autograd knows no CommError
    assert max(rank.seconds for rank in ranks) < END_S


@pytest.mark.row("K1", "K5")
@pytest.mark.parametrize(
    "name,ranks,stage,on", [("SIGKILL", 3, 3, "lazy"), ("SIGKILL", 2, 1, "late"), ("SIGSTOP", 3, 3, "late")]
)
def test_a_device_whose_rank_dies_or_stops(name, ranks, stage, on):
    disturb(getattr(signal, name), stage, "auto", random.SystemRandom().randrange(1000), on=on, ranks=ranks)


class FailingCall(TorchDispatchMode):
    """LibTorch's n-th operation fails."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError(f"{operation} fails")
        return operation(*args, **(kwargs or {}))


def fail_in_initialize(n, stage):
    with FailingCall(n if world.rank() == 1 else 0):
        zeroshard.initialize(model=make_model(), config=configuration(stage, "auto"))


@pytest.mark.row("K1")
@pytest.mark.parametrize("n,stage,on", [(20, 3, "late"), (73, 1, "late"), (97, 3, "late"), (133, 1, "lazy")])
def test_a_rank_that_fails_in_initialize(n, stage, on):
    """Before ranks are connected, on the way to the first broadcast, and between two of them: rank 0 waits for one that
    never comes."""
    first, other = world.run_ranks(2, fail_in_initialize, n=n, stage=stage, on=on, timeout_s=40)
    assert other.exit_code == 1 and first.exit_code == 1, (first, other)
    assert first.error.startswith("CommError") and "rank 1" in first.error, first
    assert first.seconds < END_S
