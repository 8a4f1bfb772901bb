"""A load whose Python half fails leaves an engine that is of two checkpoints: it may not go on."""

import pytest
import torch
import world
import zeroshard
from saved import checkpoints_in
from test_checkpoint import facts, make, seed, train

IDS = torch.zeros(4, 6, dtype=torch.long)


class Picky:
    """A scheduler that refuses its state on one rank, as long as it is told to."""

    def __init__(self, rank):
        self.rank = rank
        self.refuses = False

    def step(self):
        pass

    def state_dict(self):
        return {"count": 1}

    def load_state_dict(self, state):
        if self.refuses and self.rank == 1:
            raise KeyError("base_lrs")


def fail_in_the_scheduler(folder, stage, dtype):
    engine = make(stage, dtype)
    engine.lr_scheduler = Picky(engine.rank())
    seed(engine)
    train(engine, 2)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    saved = facts(engine)
    train(engine, 1)
    engine.lr_scheduler.refuses = True
    said = []
    uses = [
        lambda: engine.load_checkpoint(folder),
        lambda: engine(IDS),
        engine.step,
        lambda: engine.save_checkpoint(folder),
        lambda: engine.load_checkpoint(folder, load_module_only=True) and engine(IDS),  # less than what has failed
    ]
    for use in uses:
        try:
            use()
            said.append("")
        except zeroshard.Error as error:
            said.append(f"{type(error).__name__}: {error}; {error.__cause__!r}")
    engine.lr_scheduler.refuses = False
    engine.load_checkpoint(folder)
    same = facts(engine) == saved
    train(engine, 1)
    return said, same, checkpoints_in(folder)


@pytest.mark.row("C1")
@pytest.mark.parametrize(("stage", "dtype"), [(0, "bf16"), (1, "fp32"), (3, "fp16")])
def test_it_blocks_the_engine_until_a_load_of_as_much_succeeds(tmp_path, stage, dtype):
    results = world.run(2, fail_in_the_scheduler, folder=str(tmp_path), stage=stage, dtype=dtype)
    for rank, ((load, *others), same, names) in enumerate(results):
        assert load.startswith("ValueError: rank 1: KeyError: 'base_lrs'; " + ["None", "KeyError"][rank]), load
        assert all("StateError: " in said and "load_checkpoint failed when" in said for said in others), others
        assert same and names == ["global_step2", "latest"]
