"""Errors and interruptions of callbacks that the core calls on every rank."""

import pytest
import torch
import world
import zeroshard
from zeroshard.together import naming_causes, together

CONFIG = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"}, "zero_optimization": {"stage": 2}}


def interrupted():
    raise KeyboardInterrupt


def interrupted_before_it_is_kept():
    """A signal that came while the core ran is raised where a callback begins: before ``keeping`` can see it."""
    core = zeroshard.initialize(model=torch.nn.Linear(40, 40), config=CONFIG)[0]._run.core
    expected = KeyboardInterrupt if world.rank() == 0 else zeroshard.Error
    for _ in range(2):
        with pytest.raises(expected) as caught, naming_causes():
            core.together(interrupted if world.rank() == 0 else lambda: None, "test")
        assert world.rank() == 0 or "KeyboardInterrupt" in str(caught.value)
    # It is forgotten: another error is not taken for it.
    with pytest.raises(zeroshard.Error, match="of another kind"):
        together(zeroshard.initialize(model=torch.nn.Linear(40, 40), config=CONFIG)[0]._run, another, "test")


def another():
    raise ValueError("of another kind")


@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_is_no_error_of_the_core(ranks):
    world.run(ranks, interrupted_before_it_is_kept)
