"""Which directory a path means, and who may save there."""

import os

import pytest
import torch
import world
import zeroshard
from checkpointed import configuration, make, train
from saved import checkpoints_in
from waiting import wait_for


def through_a_link(folder):
    """Saves and loads by the same path, whose ".." stands behind a link."""
    os.makedirs(f"{folder}/deep/cur")
    os.symlink("deep/cur", f"{folder}/cur")
    os.chdir(folder)
    engine, *_ = zeroshard.initialize(model=torch.nn.Linear(2, 2), config=configuration(1))
    engine.save_checkpoint("cur/../ckpt", client_state={"a": 1})
    engine.wait_for_checkpoint()
    return engine.load_checkpoint("cur/../ckpt"), checkpoints_in("deep/ckpt")


def test_one_path_leads_to_one_place(tmp_path):
    [((path, client), names)] = world.run(1, through_a_link, folder=str(tmp_path))
    assert path == "cur/../ckpt/global_step0" and client == {"a": 1} and names == ["global_step0", "latest"]


def save_and_wait(folder, steps, until=None):
    engine = make(2)
    train(engine, steps)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    print(f"saved by {os.getpid()}", flush=True)
    if until is not None:
        wait_for(lambda: os.path.exists(until), until, seconds=60)


@pytest.mark.row("L1")
@pytest.mark.parametrize("killed", [False, True])
def test_a_second_job_in_one_directory_is_refused_until_the_first_is_gone(tmp_path, killed):
    folder, until = str(tmp_path / "run"), str(tmp_path / "end")
    first = world.World(2, save_and_wait, folder=folder, steps=1, until=until)
    try:
        first.wait_for("saved by ", seconds=120)
        for rank in world.run_ranks(2, save_and_wait, folder=folder, steps=2):
            message = f"{folder} is in use by process {first.pids[0]} on host "
            assert rank.error is not None and message in rank.error, rank.error
        assert checkpoints_in(folder) == ["global_step1", "latest"]
        if killed:
            first.kill()
        else:
            open(until, "w").close()
        first.results()
    finally:
        first.kill()
    world.run(2, save_and_wait, folder=folder, steps=2)
    assert checkpoints_in(folder) == ["global_step1", "global_step2", "latest"]
