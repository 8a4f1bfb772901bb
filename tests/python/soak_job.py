"""The job of test_soak.py: goes on from the last checkpoint to the end, and notes what its process holds.

soak_job.py FOLDER NOTES STEPS EVERY KEEP
"""

import json
import os
import re
import sys

import zeroshard
from checkpointed import Dropping, configuration, facts, seed, train


def make(steps, **checkpoint):
    config = configuration(3, "bf16", timeout_s=20, stall_timeout_s=5, checkpoint=checkpoint)
    config["scheduler"]["params"]["total_num_steps"] = steps  # each step changes the parameters
    engine, *_ = zeroshard.initialize(model=Dropping(), config=config)
    seed(engine)
    return engine


def undisturbed(steps):
    engine = make(steps)
    train(engine, steps)
    return facts(engine)


def holds(pid="self"):
    """KiB in memory, open files and threads of a process.

    Without the pages of files: the system takes idle ones from a process, and they come back with their next use.
    """
    with open(f"/proc/{pid}/smaps_rollup") as file:
        kinds = re.findall(r"^(?:Anonymous|Pss_Shmem): +(\d+) kB", file.read(), re.M)
    assert len(kinds) == 2
    return [sum(map(int, kinds)), len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))]


def job(folder, notes, steps, every, keep):
    engine = make(steps, keep=keep)
    engine.load_checkpoint(folder)
    life = int(os.environ["ZEROSHARD_RESTART_COUNT"])
    mine = os.path.join(notes, f"rank-{engine.rank()}")
    where = os.open(mine + ".now", os.O_WRONLY | os.O_CREAT, 0o600)
    with open(mine + ".holds", "a", buffering=1) as record:
        while engine.global_steps < steps:
            train(engine, 1)
            os.pwrite(where, b"%4d %8d %8d" % (life, os.getpid(), engine.global_steps), 0)
            if engine.global_steps % every == 0:
                engine.wait_for_checkpoint()  # the one before
                record.write(json.dumps([life, engine.global_steps, *holds()]) + "\n")
                engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    with open(mine + ".end", "w") as file:
        json.dump(facts(engine), file)


if __name__ == "__main__":
    job(*sys.argv[1:3], *map(int, sys.argv[3:]))
