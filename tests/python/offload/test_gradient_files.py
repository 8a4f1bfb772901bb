"""Reduced gradients in swap files: states that are read beside them, and what happens when they fail."""

import models
import pytest
import torch
import world
import zeroshard
from test_swap_files import WIDTH, configuration, damage_own_file, train_on_vectors
from zeroshard.compat.deepspeed import initialize


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


def read_states(folder, stage):
    """After a step, whose gradients can still be read; and states that are taken back."""
    seen = []
    for gradients in ("auto", "nvme"):
        config = configuration(stage, path=folder, zeroshard={"offload": {"gradients": gradients}})
        model = models.stack(width=WIDTH)
        engine = initialize(model=model, model_parameters=model.parameters(), config=config)[0]
        for step in range(3):
            train_on_vectors(engine, step, step + 1)
            states = engine.optimizer.state_dict()
            if step == 1:
                engine.optimizer.load_state_dict(states)
        values = [value for state in states["state"].values() for value in state.values()]
        seen.append((values, engine.parameter_digest()))
        engine.destroy()
    (auto, expected), (nvme, digest) = seen
    same = [torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(auto, nvme, strict=True)]
    return len(same) > 0 and all(same) and digest == expected


@pytest.mark.parametrize("ranks,stage", [(1, 2), (2, 1), (2, 3)])
def test_states_are_read_and_taken_back(tmp_path, ranks, stage):
    assert world.run(ranks, read_states, folder=str(tmp_path), stage=stage) == [True] * ranks
