"""A model with everything that a checkpoint holds, trained on data that random numbers of every kind choose."""

import random

import models
import torch
import world
import zeroshard
from torch import nn

STAGES = [0, 1, 2, 3]
WIDTH = 500  # units of 13 blocks of 1024 elements, by which shards are cut: each of 2, 3, 4, 5 or 7 ranks has a part


def configuration(stage, dtype="fp32", optimizer="AdamW", **own):
    blocks = {"gradient_clipping": 0.5, "zeroshard": own}
    if optimizer != "none":
        momentum = {"momentum": 0.9} if optimizer == "SGD" else {}
        blocks["optimizer"] = {"type": optimizer, "params": {"lr": 3e-3, "weight_decay": 0.01, **momentum}}
        blocks["scheduler"] = {"type": "WarmupCosineLR", "params": {"total_num_steps": 40, "warmup_num_steps": 5}}
    if dtype == "fp16":
        blocks["fp16"] = {"loss_scale_window": 3, "initial_scale_power": 8}
    return models.configuration(stage, dtype, threshold=1200, **blocks)


class Dropping(nn.Module):
    """Dropout, a buffer that training changes, a tied, a frozen and an empty parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(50, 24)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(24, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 24)) for _ in range(3)
        )
        self.register_buffer("seen", torch.zeros(24))  # of this rank's own data
        self.frozen = nn.Parameter(torch.randn(7, 11), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.head = nn.Linear(24, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids).mean(1)
        for block in self.blocks:
            x = x + block(x)
        if self.training:
            self.seen.mul_(0.9).add_(x.detach().float().mean(0), alpha=0.1)
        return self.head(x + self.seen.to(x.dtype)) * self.frozen.float().abs().mean().to(x.dtype)


def make(stage, dtype="fp32", optimizer="AdamW", **own):
    model = Dropping()
    config = configuration(stage, dtype, optimizer, **own)
    outside = torch.optim.RMSprop(model.parameters(), lr=1e-3) if optimizer == "none" else None
    engine, *_ = zeroshard.initialize(model=model, config=config, optimizer=outside)
    return engine


def train(engine, steps):
    """Random numbers of every kind decide about the data: a resumed run must go on with the same ones."""
    losses = []
    for _ in range(steps):
        shift = random.randrange(5)
        ids = ((torch.randint(0, 45, (4, 6)) + shift) % 50).to(world.device())
        loss = torch.nn.functional.cross_entropy(engine(ids).float(), ids[:, 0])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def facts(engine):
    return [
        engine.parameter_digest(),
        engine.get_lr(),
        engine.loss_scale,
        engine.global_steps,
        engine.skipped_steps,
        engine.module.seen.tolist(),
    ]


def seed(engine):
    torch.manual_seed(100 + engine.rank())
    random.seed(200 + engine.rank())
