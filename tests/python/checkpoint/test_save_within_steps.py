"""Saves between a backward pass and its step: of the state after the last step."""

import itertools
import os

import models
import pytest
import torch
import world
import zeroshard
from deepspeed_engines import make
from errors import message_of
from zeroshard import checkpoint


def save_in_between(folder, stage, accumulation):
    """A run with a save after each backward pass ends as one without; a loaded one begins where the last step ended."""
    digests, told = [], []
    for saves in (True, False):
        engine = make(stage, accumulation)
        checkpoint.log = told.append
        for step in range(3):
            for micro in range(accumulation):
                engine.backward(models.part_loss(engine, step, micro))
                if saves:
                    engine.save_checkpoint(folder, tag=f"{step}.{micro}")
                engine.step()
        digests.append(engine.parameter_digest())
        engine.destroy()
    other = make(3 - stage, accumulation)
    other.load_checkpoint(folder, tag=f"1.{accumulation - 1}")
    samples = 2 * world.size() * accumulation
    assert (other.global_steps, other.micro_steps, other.global_samples) == (1, accumulation, samples)
    for step in (1, 2):
        for micro in range(accumulation):
            other.backward(models.part_loss(other, step, micro))
            other.step()
    digests.append(other.parameter_digest())
    refused = message_of(lambda: (other.backward(models.part_loss(other, 0)), other.load_checkpoint(folder)))
    return digests, told, refused


@pytest.mark.parametrize("ranks,stage,accumulation", [(1, 1, 1), (2, 2, 3), (2, 3, 1), (2, 0, 2)])
def test_a_checkpoint_between_backward_and_step(tmp_path, ranks, stage, accumulation):
    found = world.run(ranks, save_in_between, folder=str(tmp_path), stage=stage, accumulation=accumulation)
    for rank, (digests, told, refused) in enumerate(found):
        assert len(set(digests)) == 1, digests
        assert len(told) == (3 * accumulation if rank == 0 else 0)
        assert all("It has no gradients" in text for text in told)
        assert "load_checkpoint between a backward pass and its step" in refused
    assert os.path.isdir(tmp_path / "0.0")


def seen_of(engine, loader, count, folder=None):
    """Which batches come, and what a run resumed behind each backward pass begins with."""
    seen = []
    for x in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), count):
        seen.append(x[:, 0].tolist())
        engine.backward(engine(x).square().mean())
        if folder is not None:
            engine.save_checkpoint(folder, tag=f"{len(seen)}")
        engine.step()
    return seen


def resume_data(folder):
    data = [torch.full((40,), float(index)) for index in range(world.size() * 14)]
    config = models.configuration(1, accumulation=2, optimizer=models.adamw())

    def initialize():
        model = torch.nn.Linear(40, 40)
        return zeroshard.initialize(model=model, training_data=data, config=config)

    engine, _, loader, _ = initialize()
    expected = seen_of(engine, loader, 5, folder)
    found = {}
    for saved in range(1, 6):
        other, _, again, _ = initialize()
        other.load_checkpoint(folder, tag=f"{saved}")
        begun = (saved - 1) // 2 * 2  # by micro-batches of whole steps
        assert other.micro_steps == begun
        found[saved] = seen_of(other, again, 1) == expected[begun : begun + 1]
        other.backward(other(next(iter(again))).square().mean())
        other.zero_grad()  # its batch shall not count
        taken = again.state_dict()
        other.backward(other(next(iter(again))).square().mean())
        other.save_checkpoint(folder, tag="dropped")
        other.zero_grad()
        other.load_checkpoint(folder, tag="dropped")
        assert again.state_dict() == taken
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_sees_the_batches_of_the_open_step_again(tmp_path, ranks):
    for found in world.run(ranks, resume_data, folder=str(tmp_path)):
        assert list(found.values()) == [True] * 5, found
