"""Stage 3 where ranks' backward passes need other units: modules that enter the loss on some ranks alone."""

import copy

import models
import pytest
import torch
import world
import zeroshard
from test_failed_steps import Fault, configuration
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


def loss_with_heads(model, x, y, users, rank):
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


def train_beside_torch(model, loss_at, stage, **own):
    """``loss_at(module, step, rank)``. The largest difference to PyTorch with the mean over ranks, and the digest."""
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    engine, *_ = zeroshard.initialize(
        model=model, config=configuration(stage) | {"zeroshard": {"timeout_s": 30, **own}}
    )
    for step in range(STEPS):
        for rank in range(world.size()):
            (loss_at(reference, step, rank) / world.size()).backward()
        optimizer.step()
        optimizer.zero_grad()
        engine.backward(loss_at(engine, step, world.rank()))
        engine.step()
    with zeroshard.gathered(model.parameters()):
        pairs = zip(model.parameters(), reference.parameters(), strict=True)
        difference = max((mine - theirs).abs().max().item() for mine, theirs in pairs)
    return difference, engine.parameter_digest()


def share_of(step, rank):
    return (models.share(each, rank, world.size()) for each in models.vectors(step, 0, 2 * world.size()))


def train_with_heads(heads, stage):
    def loss_at(module, step, rank):
        return loss_with_heads(module, *share_of(step, rank), users_at(step, heads, world.size()), rank)

    return train_beside_torch(WithHeads(), loss_at, stage, unit_classes=["Residual"])


@pytest.mark.parametrize("heads", ["always", "both", "at first", "in turn"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_module_that_enters_the_loss_on_some_ranks_is_trained(size, heads):
    at_stage_3 = world.run(size, train_with_heads, heads=heads, stage=3)
    at_stage_1 = world.run(size, train_with_heads, heads=heads, stage=1)
    assert max(difference for difference, _ in at_stage_3) < 1e-6
    assert len({digest for _, digest in at_stage_3 + at_stage_1}) == 1


class Apart(nn.Module):
    """Two branches of the input: the backward of the last one needs nothing of the first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = models.stack(), models.Residual(10)

    def forward(self, x):
        return self.first(x), self.last(x)


def train_branches(stage):
    """From the second step on one rank in turn needs the last branch alone."""

    def loss_at(module, step, rank):
        x, y = share_of(step, rank)
        first, last = module(x)
        loss = last.square().mean()
        return loss if step > 0 and rank == step % world.size() else loss + nn.functional.mse_loss(first, y)

    return train_beside_torch(Apart(), loss_at, stage)


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_needs_the_last_units_alone_takes_part_in_the_rest(size):
    found = [result for stage in (1, 3) for result in world.run(size, train_branches, stage=stage)]
    assert max(difference for difference, _ in found) < 1e-6
    assert len({digest for _, digest in found}) == 1


def train_another_head():
    """From the third step on, rank 1 needs a head that no rank needed before."""
    engine, *_ = zeroshard.initialize(
        model=WithHeads(), config=configuration(3) | {"zeroshard": {"timeout_s": 30, "unit_classes": ["Residual"]}}
    )
    for step in range(STEPS):
        x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, 0, 2 * world.size()))
        engine.backward(loss_with_heads(engine, x, y, {"second": [1] if step == 2 else [], "third": []}, world.rank()))
        engine.step()


def test_a_module_that_a_rank_begins_to_use_alone_is_named():
    for rank in world.run_ranks(2, train_another_head):
        assert "ranks disagree" in rank.error, rank.error
        assert "enters the loss on some ranks alone" in rank.error, rank.error
    assert "gradients of unit 'second'" in rank.error


def raise_fault(grad):
    raise Fault("planted")


class Block(models.Residual):
    """A block that every rank calls, and that may leave its layers out."""

    drops, how = False, "same"

    def forward(self, x):
        if self.drops:
            return x if self.how == "same" else x * 1.0
        return super().forward(x)


def train_with_dropped_layers(dropped, how, stage):
    """``dropped``: by step and rank, the blocks. The largest difference of the norms to PyTorch's, and the digest."""
    torch.manual_seed(0)
    model = models.Stack(block=Block, layers=4)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    engine, *_ = zeroshard.initialize(model=model, config=configuration(stage))

    def loss_at(module, blocks, step, rank):
        for index, block in enumerate(blocks):
            block.drops, block.how = index in dropped[step][rank], how
        x, y = models.vectors(step, rank, 2)
        return nn.functional.mse_loss(module(x), y)

    difference = 0.0
    for step in range(len(dropped)):
        for rank in range(world.size()):
            (loss_at(reference, reference.blocks, step, rank) / world.size()).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in reference.parameters() if p.grad is not None])
        optimizer.step()
        optimizer.zero_grad()
        engine.backward(loss_at(engine, model.blocks, step, world.rank()))
        engine.step()
        difference = max(difference, abs(engine.get_global_grad_norm() / norm.item() - 1))
    return difference, engine.parameter_digest()


DROPPED = {
    "at first": [[[], [1]], [[2], []], [[], []]],
    "several": [[[2, 3], [1]], [[1, 2], [3]], [[1, 2, 3], []]],
    "by all at first": [[[2], [2]], [[], [2]], [[2], []]],
}


@pytest.mark.parametrize("how", ["same", "scaled"])
@pytest.mark.parametrize("dropped", list(DROPPED))
@pytest.mark.parametrize("size", [2, 3])
def test_layers_that_some_ranks_leave_out_are_trained(size, dropped, how):
    """Each rank draws its own, as stochastic depth does inside a block."""
    steps = [ranks + [[1, 3]] * (size - 2) for ranks in DROPPED[dropped]]
    results = [
        each
        for stage in (1, 3)
        for each in world.run(size, train_with_dropped_layers, dropped=steps, how=how, stage=stage)
    ]
    assert max(difference for difference, _ in results) < 1e-5
    assert len({digest for _, digest in results}) == 1


def train_after_a_failure(failing):
    """All heads first, then one at a time; the backward of each step fails once before, but for the first."""
    engine, *_ = zeroshard.initialize(
        model=WithHeads(), config=configuration(3) | {"zeroshard": {"timeout_s": 30, "unit_classes": ["Residual"]}}
    )
    for step in range(STEPS):
        everybody = list(range(world.size()))
        users = [{"second": everybody, "third": everybody}, {"second": [1], "third": []}, {"second": [], "third": [0]}][
            min(step, 2)
        ]
        x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, 0, 2 * world.size()))
        for fails in (True, False):
            if fails and (failing is None or step == 0):
                continue
            loss = loss_with_heads(engine, x, y, users, world.rank())
            if fails and world.rank() in failing:
                loss.register_hook(raise_fault)
            try:
                engine.backward(loss)
            except (Fault, zeroshard.StateError):
                assert fails
        engine.step()
    return engine.parameter_digest()


@pytest.mark.parametrize("failing", [[0], [1], [0, 1]])
def test_modules_of_some_ranks_stay_known_where_a_backward_fails(failing):
    expected = world.run(2, train_after_a_failure, failing=None)
    assert len(set(expected + world.run(2, train_after_a_failure, failing=failing))) == 1


def train_tied(kind, where):
    """The very first backward fails on rank 1 before a block; then the step begins again."""
    model = models.tiny_gpt2(n_layer=3) if kind == "gpt2" else models.tiny_llama(layers=3)
    blocks = model.transformer.h if kind == "gpt2" else model.model.layers
    engine, *_ = zeroshard.initialize(model=model, config=configuration(3))
    for fails in (True, False) if where is not None else (False,):
        handle = None
        if fails and world.rank() == 1:
            handle = blocks[where].register_forward_pre_hook(
                lambda _, args: args[0].register_hook(raise_fault) and None
            )
        loss = models.language_loss(engine, models.tokens(0, world.rank(), 2))
        try:
            engine.backward(loss)
        except (Fault, zeroshard.StateError):
            assert fails
        if handle:
            handle.remove()
    engine.step()
    return engine.parameter_digest()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("where", [1, 2])
def test_the_first_backward_may_fail_between_blocks(kind, where):
    expected = world.run(2, train_tied, kind=kind, where=None)
    assert len(set(expected + world.run(2, train_tied, kind=kind, where=where))) == 1
