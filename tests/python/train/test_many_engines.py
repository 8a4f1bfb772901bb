"""A process that makes one engine after the other holds as many files and threads as with the first."""

import gc
import os

import pytest
import torch
import torch.distributed as dist
import world
import zeroshard
from models import DTYPES, stack_engine, train
from soak_job import holds

pytestmark = pytest.mark.fault
WARM = 4  # engines until each allocator has what it needs
GROWTH_KIB = 96  # of an engine: keys of the store, names; 70 measured in the first 30 engines, 6 in the next 70
LATE_FILES = 8  # that Gloo has yet to close: fewer than the 15 that the groups of one engine need


def make_many(stage, dtype, transport, count, fail=False):
    notes = []
    for _ in range(count):
        engine = stack_engine(stage, dtype, transport)
        train(engine, range(2))
        if fail:
            with pytest.raises(zeroshard.ValueError, match="the ranks disagree on the configuration"):
                stack_engine(stage if engine.rank() else 3 - stage, dtype, transport)
        digest = engine.parameter_digest()
        del engine
        gc.collect()
        notes.append([*holds(os.getpid()), len(dist.distributed_c10d._world.pg_map) if dist.is_initialized() else 0])
    return notes, digest


def check_held(notes, case):
    """Of [KiB, files, threads, groups]; Gloo closes a connection some time after it has ended."""
    assert len({tuple(note[2:]) for note in notes}) == 1, (case, notes)
    files = [note[1] for note in notes]
    assert max(files) - min(files) <= LATE_FILES, (case, notes)


@pytest.mark.row("O2")
def test_a_process_that_makes_many_engines(release):
    cases = [(2, 3, "fp32", "auto"), (1, 1, "bf16", "auto"), (2, 1, "fp16", "process_group"), (4, 0, "bf16", "auto")]
    if release:
        cases = [(n, s, d, "auto") for n in (1, 2, 3, 4) for s in range(4) for d in DTYPES]
        cases += [(n, s, "fp32", "process_group") for n in (2, 3, 4) for s in range(4)]
    for ranks, *case in cases:
        count = 30 if release else 8
        arguments = dict(zip(("stage", "dtype", "transport"), case, strict=True))
        results = world.run(ranks, make_many, **arguments, count=count, timeout_s=300)
        for notes, _ in results:
            check_held(notes[WARM:], (ranks, case))
            resident = [note[0] for note in notes[WARM:]]
            assert max(resident) <= resident[0] + GROWTH_KIB * len(resident), (ranks, case, notes)
            assert notes[-1][1] <= notes[0][1] + LATE_FILES and notes[-1][2] <= notes[0][2] + 1, (ranks, case, notes)
        assert len({digest for _, digest in results}) == 1


@pytest.mark.row("O2")
def test_ranks_that_could_not_make_an_engine_leave_nothing_either():
    for transport in ("auto", "process_group"):
        results = world.run(2, make_many, stage=1, dtype="fp32", transport=transport, count=5, fail=True)
        for notes, _ in results:
            check_held(notes[2:], transport)


def shared_memory_needs_no_group():
    engine = stack_engine(3, "fp32")
    groups = len(dist.distributed_c10d._world.pg_map)
    train(engine, range(2))
    torch.distributed.barrier()  # of the default group, which is the user's
    return engine._run.core.transports, groups


def test_ranks_of_one_host_keep_no_group_of_their_own():
    assert world.run(2, shared_memory_needs_no_group) == [[["shm", "shm", "shm"], 1]] * 2
