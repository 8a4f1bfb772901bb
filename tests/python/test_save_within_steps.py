"""Saves between a backward pass and its step: of the state after the last step."""

import os

import pytest
import world
from test_compat_engine import loss_of, make
from test_misuse import message_of
from zeroshard import checkpoint


def save_in_between(folder, stage, accumulation):
    """A run with a save after each backward pass ends as one without; a loaded one begins where the last step ended."""
    digests, told = [], []
    for saves in (True, False):
        engine = make(stage, accumulation)
        checkpoint.log = told.append
        for step in range(3):
            for micro in range(accumulation):
                engine.backward(loss_of(engine, step, micro))
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
            other.backward(loss_of(other, step, micro))
            other.step()
    digests.append(other.parameter_digest())
    refused = message_of(lambda: (other.backward(loss_of(other, 0)), other.load_checkpoint(folder)))
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
