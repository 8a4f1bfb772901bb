"""Reduced gradients in swap files: what happens when these fail."""

import pytest
import torch
import world
import zeroshard
from test_swap_files import configuration, damage_own_file


def train_into_damage(folder):
    """The damaged file is read in backward, by the second micro-batch's sum."""
    offload = {"gradients": "nvme"}
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    config = configuration(2, path=folder, zeroshard={"timeout_s": 30, "offload": offload})
    config |= {"gradient_accumulation_steps": 2}
    config["zero_optimization"]["offload_optimizer"]["buffer_count"] = 1
    engine = zeroshard.initialize(model=model, config=config)[0]
    engine.backward(engine(torch.ones(2, 64)).square().mean())
    engine.step()
    damage_own_file(folder, number=1)  # that of the states was made first
    with pytest.raises(zeroshard.IoError, match="gradients of group") as error:
        engine.backward(engine(torch.ones(2, 64)).square().mean())
    return type(error.value).__name__


@pytest.mark.row("D3")
def test_an_error_of_a_file_in_backward_has_its_class(tmp_path):
    assert world.run(1, train_into_damage, folder=str(tmp_path), timeout_s=60) == ["IoError"]
