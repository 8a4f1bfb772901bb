"""A load whose Python half fails leaves an engine that is of two checkpoints: neither it nor another may go on."""

import pytest
import torch
import world
import zeroshard
from checkpointed import configuration, facts, make, seed, train
from saved import checkpoints_in

IDS = torch.zeros(4, 6, dtype=torch.long)


class Picky:
    """A scheduler that refuses its state on the last rank, as long as it is told to, but not on trial."""

    loads = 0  # while it refuses: its state on trial, its own again, and, once weights are read, its state

    def __init__(self, rank, error=KeyError):
        self.rank = rank
        self.error = error
        self.refuses = False

    def step(self):
        pass

    def state_dict(self):
        return {"count": 1}

    def load_state_dict(self, state):
        self.loads += self.refuses
        if self.refuses and self.loads == 3 and self.rank == world.size() - 1:
            raise self.error("base_lrs")


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


def saved_and_trained_on(folder, stage, dtype, error=KeyError):
    """An engine whose next load fails half way, and the values that it has."""
    engine = make(stage, dtype)
    engine.lr_scheduler = Picky(engine.rank(), error)
    seed(engine)
    train(engine, 2)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    train(engine, 1)
    with zeroshard.gathered(engine.module.parameters()):
        values = {name: value.clone() for name, value in engine.module.state_dict().items()}
    engine.lr_scheduler.refuses = True
    return engine, values


def hand_on(folder, stage, dtype, remedy):
    """What another engine for the model says, before and after the way out; and whether it has what that gave."""
    engine, values = saved_and_trained_on(folder, stage, dtype)
    model = engine.module
    config = configuration(stage, dtype)
    with pytest.raises(zeroshard.Error):
        engine.load_checkpoint(folder)
    if remedy == "destroy":
        engine.destroy()
    with pytest.raises(zeroshard.StateError) as refused:
        zeroshard.initialize(model=model, config=config)
    if remedy == "load":  # by the engine before, which is as it was
        engine.lr_scheduler.refuses = False
        engine.load_checkpoint(folder)
        expected = engine.parameter_digest()
    else:
        model.load_state_dict(values)
    other = zeroshard.initialize(model=model, config=config)[0]
    if remedy != "load":
        expected = other.parameter_digest()
        with zeroshard.gathered(model.parameters()):
            same = [torch.equal(value, values[name]) for name, value in model.named_parameters()]
        assert all(same)
    assert other.parameter_digest() == expected
    train(other, 1)
    return str(refused.value)


@pytest.mark.row("C1")
@pytest.mark.parametrize("remedy", ["load", "state_dict", "destroy"])
@pytest.mark.parametrize(("ranks", "stage", "dtype"), [(1, 1, "bf16"), (2, 0, "bf16"), (2, 3, "fp32")])
def test_no_other_engine_takes_the_model_before_it_is_whole(tmp_path, ranks, stage, dtype, remedy):
    ends = world.run_ranks(ranks, hand_on, folder=str(tmp_path), stage=stage, dtype=dtype, remedy=remedy)
    for end in ends:
        assert end.error is None, end.log
        assert end.value.startswith(
            f"zeroshard.initialize: load_checkpoint failed when it had read a part of {tmp_path}/global_step2: "
        ), end.value
        assert "'embed.weight'" in end.value and "model.load_state_dict" in end.value, end.value
        assert ("warning: destroy: load_checkpoint failed when" in end.log) == (remedy == "destroy" and end.rank == 0)


def interrupt_a_load(folder, stage):
    engine, _ = saved_and_trained_on(folder, stage, "fp32", KeyboardInterrupt)
    said = []
    for use in (lambda: engine.load_checkpoint(folder), lambda: engine(IDS)):
        try:
            use()
            said.append("")
        except (KeyboardInterrupt, zeroshard.Error) as error:
            said.append(f"{type(error).__name__}: {error}")
    engine.lr_scheduler.refuses = False
    engine.load_checkpoint(folder)
    train(engine, 1)
    return said


@pytest.mark.row("C1")
@pytest.mark.parametrize("stage", [1, 3])
def test_ctrl_c_within_a_load_is_no_error_of_the_load(tmp_path, stage):
    (other, *uses), (interrupted, *more) = world.run(2, interrupt_a_load, folder=str(tmp_path), stage=stage)
    assert interrupted == "KeyboardInterrupt: base_lrs"
    assert other == "ValueError: rank 1: KeyboardInterrupt: base_lrs"
    assert all("StateError: load_checkpoint failed when" in said for said in uses + more), uses + more
