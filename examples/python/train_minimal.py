#!/usr/bin/env python3
"""The smallest sharded training: a plain torch model, ZeRO stage 3.

zeroshard run --nproc 2 examples/python/train_minimal.py
"""

import os

import torch
import zeroshard
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.layers(self.norm(x))


def main():
    torch.manual_seed(0)  # the same weights on every rank
    model = nn.Sequential(nn.Linear(8, 64), *[Block(64) for _ in range(4)], nn.Linear(64, 1))
    engine, *_ = zeroshard.initialize(model=model, config=CONFIG, model_parameters=model.parameters())
    rank = int(os.environ.get("RANK", "0"))
    data = torch.Generator().manual_seed(rank)  # different data on every rank

    for step in range(1, 201):
        x = torch.rand(16, 8, generator=data) * 4 - 2
        target = x.sin().prod(dim=1, keepdim=True)
        loss = nn.functional.mse_loss(engine(x), target)
        engine.backward(loss)
        engine.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)

    with zeroshard.gathered(model.parameters()):
        if rank == 0:
            print("first weights:", model[0].weight[0, :3].tolist())


if __name__ == "__main__":
    main()
