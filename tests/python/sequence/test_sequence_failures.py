"""Ranks of the second sequence group that die or fail: messages have their numbers in the world."""

import os
import signal

import pytest
import sequences
import world
import zeroshard
from errors import message_of

VICTIM = 3  # the second rank of the second group


def failing(where, transport, shard=None):
    """The error of rank 2, which shares rows with the rank that fails; the process of that rank."""
    config = sequences.configuration(0, 2, 2, zeroshard={"transport": transport, "mesh": {"shard": shard}})
    engine, *_ = zeroshard.initialize(model=sequences.llama(), config=config)
    rank = world.rank()
    (batch, _) = zeroshard.sequence_parallel(engine, [sequences.rows("plain", 0, 2)])
    if rank < 2:
        return None

    def loaded():
        if rank == VICTIM and where == "loader":
            os.kill(os.getpid(), signal.SIGKILL)
        yield sequences.rows("plain", 1, 2)

    def forward(*_):
        if where == "forward":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError("the disk is gone")

    if where == "loader":
        return message_of(lambda: list(zeroshard.sequence_parallel(engine, loaded())))
    if where == "rows":
        batch = {key: value for key, value in batch.items() if key != "position_ids" or rank != VICTIM}
    elif rank == VICTIM:
        engine.module.model.layers[1].mlp.register_forward_hook(forward)
    return message_of(lambda: engine(**batch))


@pytest.mark.parametrize("transport", ["shm", "process_group"])
@pytest.mark.parametrize("where", ["forward", "loader"])
@pytest.mark.parametrize("shard", [None, 2])
def test_a_rank_that_dies(where, transport, shard):
    ranks = world.run_ranks(4, failing, where=where, transport=transport, shard=shard)
    assert ranks[VICTIM].exit_code == -signal.SIGKILL
    assert f"rank 3 (pid {ranks[VICTIM].pid}) died" in ranks[2].value
    assert ranks[2].value.startswith("CommError")


@pytest.mark.parametrize("shard", [None, 1])
def test_a_rank_that_fails(shard):
    told = "the forward failed on rank 3: OSError: the disk is gone [reported by rank 3]"
    ranks = world.run_ranks(4, failing, where="error", transport="shm", shard=shard)
    assert ranks[2].value == f"CommError: {told}"


def test_a_rank_with_wrong_rows():
    ranks = world.run_ranks(4, failing, where="rows", transport="auto")
    assert "forward needs position_ids" in ranks[2].value and ranks[2].value.endswith("(rank 3)")
    assert ranks[2].value == ranks[VICTIM].value
