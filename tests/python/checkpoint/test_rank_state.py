"""`rank_state` of save_checkpoint and load_checkpoint: what each rank has of its own."""

import os

import models
import pytest
import torch
import world
import zeroshard
from checkpointed import make, train
from test_checkpoint_state import refused, same
from zeroshard.compat.deepspeed import initialize


def averages(rank):
    return {"average": [torch.full((3 + rank,), float(rank))], "_orig_mod.name": torch.tensor(rank), "rank": rank}


def save_rank_state(folder):
    engine = make(3)
    engine.save_checkpoint(folder, client_state={"a": torch.ones(1)}, rank_state=averages(world.rank()))
    engine.wait_for_checkpoint()
    found = {"stale": 1}
    engine.load_checkpoint(folder, rank_state=found)
    assert same(found, averages(world.rank())), found
    engine.save_checkpoint(folder, tag="empty", rank_state={})  # of this rank, and of the other
    engine.save_checkpoint(folder, tag="none", save_latest=False)
    engine.load_checkpoint(folder, tag="empty", rank_state=found)
    return [
        found == {},
        refused(lambda: engine.load_checkpoint(folder, tag="none", rank_state=found)),
        refused(lambda: engine.save_checkpoint(folder, rank_state={} if world.rank() else None)),
        refused(lambda: engine.save_checkpoint(folder, rank_state=[1] if world.rank() else {})),
        refused(lambda: engine.load_checkpoint(folder, rank_state=[])),
        engine.global_steps,
    ]


def load_elsewhere(folder):
    """By another number of ranks."""
    engine = make(3)
    before = {name: param.detach().clone() for name, param in weights_of(engine)}
    own = {"mine": 1}
    said = refused(lambda: engine.load_checkpoint(folder, rank_state=own))
    assert own == {"mine": 1} and same(before, dict(weights_of(engine)))  # nothing is loaded
    train(engine, 1)  # and the engine goes on
    path, client = engine.load_checkpoint(folder)
    return said, os.path.basename(path), client["a"].item()


def weights_of(engine):
    with zeroshard.gathered(engine.module.parameters()):
        return [(name, param.detach().clone()) for name, param in engine.module.named_parameters()]


def test_each_rank_has_a_state_of_its_own(tmp_path):
    for is_empty, none, partly, list_saved, list_loaded, _ in world.run(2, save_rank_state, folder=str(tmp_path)):
        assert is_empty and "the checkpoint has no rank_state" in none
        assert "some ranks have a rank_state and others have none" in partly
        assert "rank 1: rank_state is a list" in list_saved and "rank_state is a list: it must be a dict" in list_loaded


def test_only_as_many_ranks_load_their_state(tmp_path):
    world.run(2, save_rank_state_alone, folder=str(tmp_path))
    (rank,) = world.run_ranks(1, load_elsewhere, folder=str(tmp_path))
    assert rank.value, rank
    said, tag, client = rank.value
    assert "has the rank_state of 2 ranks, and there are 1: only the same number of ranks can load it" in said
    assert (tag, client) == ("global_step0", 1)
    assert "the checkpoint has a rank_state, which is not loaded" in rank.log


def save_rank_state_alone(folder):
    engine = make(3)
    engine.save_checkpoint(folder, client_state={"a": torch.ones(1)}, rank_state=averages(world.rank()))
    engine.wait_for_checkpoint()


def through_the_alias(folder):
    config = models.configuration(2, optimizer=models.adamw())
    engine = initialize(model=models.stack(), config=config)[0]
    engine.save_checkpoint(folder, rank_state=averages(world.rank()))
    found = {}
    engine.load_checkpoint(folder, rank_state=found)
    return same(found, averages(world.rank()))


def test_scripts_for_deepspeed_have_it_too(tmp_path):
    assert world.run(2, through_the_alias, folder=str(tmp_path)) == [True, True]


def stop(folder, rank_states, client_states):
    engine = make(3)
    rank, done = world.rank(), []

    def give(states):
        done.append(engine.global_steps)
        return states[rank](rank)

    engine.save_and_stop_on(folder, client_state=lambda: give(client_states), rank_state=lambda: give(rank_states))
    if rank == 1:
        engine.request_stop()
    try:
        train(engine, 2)
    except SystemExit as end:
        assert end.code == 143 and done == [1, 1]
    else:
        raise AssertionError("the run was not stopped")
    found = {}
    said = refused(lambda: engine.load_checkpoint(folder, rank_state=found))
    return said, found, engine.load_checkpoint(folder)[1]


def good(rank):
    return {"of": rank}


def fails(rank):
    raise KeyError("there is no average yet")


def is_no_dict(rank):
    return [rank]


def has_an_object(rank):
    return {"a": object()}


@pytest.mark.parametrize("bad", [fails, is_no_dict, has_an_object])
def test_a_last_checkpoint_is_saved_without_what_fails(tmp_path, bad):
    """On one rank: all save the rest, and rank 0 tells why."""
    ranks = world.run_ranks(2, stop, folder=str(tmp_path), rank_states=[good, bad], client_states=[good, good])
    for rank in ranks:
        said, found, client = rank.value
        assert "the checkpoint has no rank_state" in said and found == {} and client == {"of": 0}
    assert "saved without rank_state, because its function failed: rank 1" in ranks[0].log


def test_a_last_checkpoint_without_client_state(tmp_path):
    ranks = world.run_ranks(2, stop, folder=str(tmp_path), rank_states=[good, good], client_states=[fails, good])
    for number, rank in enumerate(ranks):
        assert rank.value == ["nothing was raised", {"of": number}, {}], rank
    assert "saved without client_state" in ranks[0].log and "no average yet" in ranks[0].log
