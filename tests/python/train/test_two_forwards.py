"""Several forward passes before one backward (preference pairs, two views): equal steps have equal gradients."""

import hashlib
import itertools

import models
import pytest
import torch
import world
import zeroshard
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, STEPS = 48, 16  # each block is sharded over up to 9 ranks


class Block(nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.checkpointed = checkpointed
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def compute(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))

    def forward(self, x):
        return checkpoint(self.compute, x, use_reentrant=False) if self.checkpointed else self.compute(x)


class Model(nn.Module):
    """A language model with a frozen layer before its head."""

    def __init__(self, tied, checkpointed):
        super().__init__()
        self.embed = nn.Embedding(models.VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(checkpointed) for _ in range(3))
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, models.VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.frozen(x))


def next_token_loss(engine, number):
    ids = torch.randint(
        0, models.VOCABULARY, (3, 6), generator=torch.Generator().manual_seed(7 * number + world.rank())
    )
    return nn.functional.cross_entropy(engine(ids).float().flatten(0, 1), ids.roll(1, 1).flatten())


def gradients(forwards, tied, stage, overlap, checkpointed):
    """The distinct gradients of all parameters in equal steps."""
    torch.manual_seed(1)
    model = Model(tied, checkpointed)
    config = models.configuration(stage, optimizer=models.sgd(0.0))
    config["zero_optimization"]["overlap_comm"] = overlap
    config["zeroshard"]["timeout_s"] = 10
    engine = zeroshard.initialize(model=model, config=config)[0]
    seen = set()
    for _ in range(STEPS):
        engine.backward(sum(next_token_loss(engine, number) for number in range(forwards)))
        digest = hashlib.sha256()
        for param in model.parameters():
            if param.requires_grad:
                digest.update(zeroshard.get_gradient(param).numpy().tobytes())
        seen.add(digest.hexdigest())
        engine.step()
    engine.destroy()
    return sorted(seen)


def gradients_of_all(forwards, tied):
    cases = itertools.product((0, 1, 2, 3), (True, False), (False, True))
    return {str(case): gradients(forwards, tied, *case) for case in cases}


@pytest.mark.parametrize(("ranks", "forwards", "tied"), [(2, 2, False), (3, 2, True), (3, 3, False), (4, 3, True)])
def test_equal_steps_have_equal_gradients(ranks, forwards, tied):
    for seen in world.run(ranks, gradients_of_all, forwards=forwards, tied=tied, timeout_s=180):
        assert len({gradient for of_case in seen.values() for gradient in of_case}) == 1, seen
