#!/usr/bin/env python3
"""An exponential moving average of the weights at stage 3: each rank averages its own shard, without communication.

zeroshard run --nproc 2 examples/python/ema_model.py
"""

import argparse
import os
from contextlib import contextmanager

import torch
import zeroshard
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    # Threshold 0: small units are sharded, too. Ranks that hold a unit whole would see the average only after a step.
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
}


class EmaModel:
    """The average of the fp32 weights that this rank updates: 4 bytes per parameter, divided by the ranks."""

    def __init__(self, params, decay):
        self.params = [param for param in params if param.requires_grad]
        self.decay = decay
        self.shards = self.weights()

    def weights(self):
        return [zeroshard.get_master_weight(param, local=True) for param in self.params]

    def update(self):
        """After each step."""
        for average, weight in zip(self.shards, self.weights(), strict=True):
            average.lerp_(weight, 1 - self.decay)

    @contextmanager
    def applied(self):
        """Inside, the model has the averages: evaluate it or save it there. Every rank enters it."""
        weights = self.weights()
        self.set(self.shards)
        try:
            yield
        finally:
            self.set(weights)

    def set(self, shards):
        for param, shard in zip(self.params, shards, strict=True):
            zeroshard.set_master_weight(param, shard, local=True)


def batch_of(generator):
    x = torch.rand(16, 8, generator=generator) * 4 - 2
    return x, x.sin().sum(dim=1, keepdim=True) + torch.randn(16, 1, generator=generator)


def loss_of(engine, batch):
    x, target = batch
    return nn.functional.mse_loss(engine(x), target)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--decay", type=float, default=0.98)
    parser.add_argument("--out", default="runs/ema_model")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    engine, *_ = zeroshard.initialize(model=model, config=CONFIG, model_parameters=model.parameters())
    ema = EmaModel(model.parameters(), arguments.decay)
    rank = int(os.environ.get("RANK", "0"))
    data, held_out = torch.Generator().manual_seed(rank), torch.Generator().manual_seed(1000)

    for _ in range(arguments.steps):
        engine.backward(loss_of(engine, batch_of(data)))
        engine.step()
        ema.update()

    batches = [batch_of(held_out) for _ in range(50)]

    @torch.no_grad()
    def held_out_loss():
        return sum(loss_of(engine, batch).item() for batch in batches) / len(batches)

    of_weights = held_out_loss()
    with ema.applied():
        of_average = held_out_loss()
        engine.save_16bit_model(arguments.out, "ema.safetensors")
    engine.save_16bit_model(arguments.out)
    if rank == 0:
        print(f"held-out loss: {of_weights:.4f} of the last weights, {of_average:.4f} of their average", flush=True)


if __name__ == "__main__":
    main()
