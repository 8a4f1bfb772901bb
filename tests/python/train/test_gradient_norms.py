"""Norms of single gradients, against those of the whole gradients; and the example that averages weights."""

import re
import subprocess

import models
import pytest
import torch
import world
import zeroshard
from built import REPOSITORY, ZEROSHARD, needs
from errors import message_of
from launched import environment
from safetensors.torch import load_file


def make_tied_engine(stage, dtype="fp32", accumulation=1):
    torch.manual_seed(0)
    model = models.Tied()
    config = models.configuration(stage, dtype, accumulation=accumulation, optimizer=models.adamw(1e-3))
    return model, zeroshard.initialize(model=model, config=config)[0]


def norms_and_whole(stage, dtype, accumulation):
    """Before and after a step: the norms by name, and those of the gradients that every rank sees whole."""
    model, engine = make_tied_engine(stage, dtype, accumulation)
    found = []
    for micro in range(accumulation):
        engine.backward(models.part_loss(engine, 0, micro))
        if micro + 1 == accumulation:
            found.append(zeroshard.get_gradient_norms(model))
        engine.step()
    found.append(zeroshard.get_gradient_norms(engine))
    grads = {name: zeroshard.get_gradient(param) for name, param in model.named_parameters()}
    whole = {name: grad.double().norm().item() for name, grad in grads.items() if grad is not None}
    part = zeroshard.get_gradient_norms(model.blocks)
    total = sum(norm**2 for norm in found[1].values()) ** 0.5
    engine(torch.zeros(1, 10, dtype=next(model.parameters()).dtype))
    return [*found, whole, part, total, engine.get_global_grad_norm(), zeroshard.get_gradient_norms(model)]


@pytest.mark.parametrize(
    ("ranks", "stage", "dtype", "accumulation"),
    [(1, 0, "fp32", 1), (2, 0, "fp32", 2), (2, 1, "bf16", 1), (3, 2, "fp32", 1), (3, 3, "fp32", 2), (2, 3, "bf16", 1)],
)
def test_norms_are_those_of_the_whole_gradients(ranks, stage, dtype, accumulation):
    of_ranks = world.run(ranks, norms_and_whole, stage=stage, dtype=dtype, accumulation=accumulation)
    for before, after, whole, part, total, global_norm, later in of_ranks:
        assert before == of_ranks[0][0]  # the same bits on every rank
        assert after == pytest.approx(whole, rel=1e-6)
        assert before == pytest.approx(whole, rel=1e-6)
        assert "first.weight" in whole  # tied, and so named once
        assert not {"frozen.weight", "unused.weight", "again.weight"} & after.keys()
        assert part == {name[7:]: norm for name, norm in after.items() if name.startswith("blocks.")}
        assert total == pytest.approx(global_norm, rel=1e-5)
        assert later == {}  # the next forward for training has begun


def ask_without_an_engine():
    model, engine = make_tied_engine(2)
    engine.destroy()
    ended = message_of(lambda: zeroshard.get_gradient_norms(model))
    return [message_of(lambda: zeroshard.get_gradient_norms(torch.nn.Linear(2, 2))), ended]


def test_a_model_without_an_engine_is_an_error():
    for messages in world.run(2, ask_without_an_engine):
        assert all("no engine trains" in message and "initialize" in message for message in messages)


@needs(ZEROSHARD)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_average_of_weights(tmp_path, ranks):
    script = REPOSITORY / "examples" / "python" / "ema_model.py"
    done = subprocess.run(
        [ZEROSHARD, "run", "--nproc", str(ranks), script, "--out", tmp_path],
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    weights, average = map(float, re.search(r"loss: (\S+) of the last weights, (\S+) of", done.stdout).groups())
    assert average < weights  # noise of the last steps is averaged out
    last, averaged = load_file(tmp_path / "model.safetensors"), load_file(tmp_path / "ema.safetensors")
    assert last.keys() == averaged.keys()
    assert all(not torch.equal(last[name], averaged[name]) for name in last)
