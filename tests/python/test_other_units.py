"""Stage 3 where ranks' backward passes need other units: modules that enter the loss on some ranks alone."""

import copy

import models
import pytest
import torch
import world
import zeroshard
from test_failed_steps import configuration
from torch import nn

STEPS = 4


class WithHeads(nn.Module):
    """A stack whose second and third heads every rank calls, and which some ranks use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = models.Residual(10)
        self.stack = models.stack()
        self.second, self.third = models.Residual(10), models.Residual(10)

    def forward(self, x):
        x = self.first(x)
        return self.stack(x), self.second(x), self.third(x)


def loss_of(model, x, y, users, rank):
    out, second, third = model(x)
    loss = nn.functional.mse_loss(out, y)
    for name, head in (("second", second), ("third", third)):
        if rank in users[name]:
            loss = loss + head.square().mean()
    return loss


def users_at(step, heads, size):
    """By head, the ranks whose loss it enters."""
    last = [size - 1]
    return {
        "always": {"second": last, "third": []},
        "both": {"second": last, "third": [0]},
        "at first": {"second": last if step < 2 else [], "third": []},
        "in turn": {"second": [step % size], "third": [(step + 1) % size]},
    }[heads]


def train(heads, stage):
    """The largest difference to PyTorch with the mean over ranks, and the digest."""
    model = WithHeads()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    engine, *_ = zeroshard.initialize(
        model=model, config=configuration(stage) | {"zeroshard": {"timeout_s": 30, "unit_classes": ["Residual"]}}
    )
    for step in range(STEPS):
        users = users_at(step, heads, world.size())
        batch = models.vectors(step, 0, 2 * world.size())
        for rank in range(world.size()):
            x, y = (models.share(each, rank, world.size()) for each in batch)
            (loss_of(reference, x, y, users, rank) / world.size()).backward()
        optimizer.step()
        optimizer.zero_grad()
        x, y = (models.share(each, world.rank(), world.size()) for each in batch)
        engine.backward(loss_of(engine, x, y, users, world.rank()))
        engine.step()
    with zeroshard.gathered(model.parameters()):
        pairs = zip(model.parameters(), reference.parameters(), strict=True)
        difference = max((mine - theirs).abs().max().item() for mine, theirs in pairs)
    return difference, engine.parameter_digest()


@pytest.mark.parametrize("heads", ["always", "both", "at first", "in turn"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_module_that_enters_the_loss_on_some_ranks_is_trained(size, heads):
    at_stage_3 = world.run(size, train, heads=heads, stage=3)
    at_stage_1 = world.run(size, train, heads=heads, stage=1)
    assert max(difference for difference, _ in at_stage_3) < 1e-6
    assert len({digest for _, digest in at_stage_3 + at_stage_1}) == 1


def train_another_head():
    """From the third step on, rank 1 needs a head that no rank needed before."""
    engine, *_ = zeroshard.initialize(
        model=WithHeads(), config=configuration(3) | {"zeroshard": {"timeout_s": 30, "unit_classes": ["Residual"]}}
    )
    for step in range(STEPS):
        x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, 0, 2 * world.size()))
        engine.backward(loss_of(engine, x, y, {"second": [1] if step == 2 else [], "third": []}, world.rank()))
        engine.step()


def test_a_module_that_a_rank_begins_to_use_alone_is_named():
    for rank in world.run_ranks(2, train_another_head):
        assert "ranks disagree" in rank.error, rank.error
        assert "enters the loss on some ranks alone" in rank.error, rank.error
    assert "gradients of unit 'second'" in rank.error
