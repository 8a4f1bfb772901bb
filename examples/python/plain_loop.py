#!/usr/bin/env python3
"""A plain loop over deepspeed.initialize, without Transformers: a small torch model learns the bytes of a text.

zeroshard run --num_gpus 2 examples/python/plain_loop.py --deepspeed examples/configs/plain_loop.json
"""

import argparse
from pathlib import Path

import deepspeed
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
LENGTH = 64


class NextByte(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layers = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, text):
        states, _ = self.layers(self.embedding(text[:, :-1]))
        return nn.functional.cross_entropy(self.head(states).flatten(0, 1), text[:, 1:].flatten())


def read(path):
    text = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8).long()
    if len(text) < LENGTH:
        raise ValueError(f"{path} has {len(text)} bytes, and one sample takes {LENGTH}: give a longer text")
    return text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deepspeed", required=True, metavar="CONFIG")
    parser.add_argument("--local_rank", type=int, default=-1)  # the command deepspeed appends it
    parser.add_argument("--text", default=ROOT / "README.md")
    parser.add_argument("--max_steps", type=int, default=200)
    parser.add_argument("--output_dir", default="runs/plain_loop")
    arguments = parser.parse_args()

    deepspeed.init_distributed()
    torch.manual_seed(0)  # the same weights on every rank
    model = NextByte()
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        training_data=read(arguments.text),
        config=arguments.deepspeed,
    )
    batches = iter(deepspeed.utils.RepeatingLoader(loader))
    for step in range(1, arguments.max_steps + 1):
        for _ in range(engine.gradient_accumulation_steps()):
            loss = engine(next(batches).to(engine.device))
            engine.backward(loss)
            engine.step()
        if deepspeed.comm.get_rank() == 0 and (step == 1 or step % 10 == 0):
            print(f"step {step}: loss {loss.item():.4f}, lr {engine.get_lr()[0]:.2e}", flush=True)
    engine.save_checkpoint(arguments.output_dir, client_state={"text": str(arguments.text)})


if __name__ == "__main__":
    main()
