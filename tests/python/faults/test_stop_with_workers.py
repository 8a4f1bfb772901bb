"""A signal to every process of a job, workers of data loaders included: the last checkpoint is written."""

import multiprocessing
import os
import signal
import subprocess

import models
import pytest
import torch
import world
import zeroshard


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((10,), index / 1000)


def stop(folder, context, number):
    multiprocessing.current_process()._config["daemon"] = False  # a rank may start workers
    engine = zeroshard.initialize(model=models.stack(), config=models.configuration(2, optimizer=models.adamw()))[0]
    engine.save_and_stop_on(folder, signals=[number])
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context=context)
    for step, x in enumerate(loader):
        if step == 2:
            pids = [process.pid for process in multiprocessing.active_children()] + [os.getpid()]
            assert len(pids) == 3
            subprocess.run(["kill", f"-{number}", *map(str, pids)], check=True)  # from no parent of theirs
        engine.backward(engine(x).pow(2).mean())
        engine.step()


@pytest.mark.parametrize(
    ("context", "number"), [("fork", signal.SIGTERM), ("spawn", signal.SIGTERM), ("fork", signal.SIGINT)]
)
def test_workers_outlive_a_signal_to_the_whole_job(tmp_path, context, number):
    ranks = world.run_ranks(2, stop, folder=str(tmp_path), context=context, number=number)
    assert [rank.exit_code for rank in ranks] == [143] * 2, [rank.error for rank in ranks]
    assert os.listdir(tmp_path).count("global_step3") == 1
