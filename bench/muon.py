#!/usr/bin/env python3
"""A step of Muon on N ranks beside torch's Muon on one: its time over N, and the time of the bytes that travel.

    bench/muon.py --ranks 2 --width 512 --layers 4 --json bench/results/muon.json

Each rank has one thread. A round times torch.optim.Muon of all matrices in one process, then step() of zeroshard's
engines, of the same matrices, after a backward pass; then a copy of as many bytes as a rank sends and gets. The least
of all rounds counts, since others may use the machine.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.multiprocessing as multiprocessing
from machine import cpu_name, free_port
from torch import nn

GOAL = 1.25


def model_of(width, layers):
    torch.manual_seed(0)
    shapes = [(width, width)] * 4 + [(3 * width, width), (width, 3 * width)]
    blocks = [nn.Sequential(*(nn.Linear(cols, rows, bias=False) for rows, cols in shapes)) for _ in range(layers)]
    return nn.Sequential(*blocks)


def seconds_of(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def torch_seconds(model, rounds):
    optimizer = torch.optim.Muon(model.parameters(), lr=1e-3)
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    return [seconds_of(optimizer.step) for _ in range(rounds + 1)][1:]


def copy_seconds(numel, rounds):
    source = torch.zeros(numel, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return min(seconds_of(lambda: target.copy_(source)) for _ in range(rounds + 1))


def rank_main(rank, arguments, port, results):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(arguments.ranks)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(arguments.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    import zeroshard

    params = {"lr": 1e-3, "momentum": 0.95, "weight_decay": 0.1, "ns_method": "standard"}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0,
        "zero_optimization": {"stage": arguments.stage},
        "optimizer": {"type": "Muon", "params": params},
    }
    model = model_of(arguments.width, arguments.layers)
    engine, *_ = zeroshard.initialize(model=model, config=config, model_parameters=model.parameters())
    times = []
    for _ in range(arguments.rounds + 1):
        engine.backward(engine(torch.randn(4, arguments.width)).pow(2).mean())
        torch.distributed.barrier()
        times.append(seconds_of(engine.step))
    results.put((rank, times[1:]))
    torch.distributed.barrier()


def engine_seconds(arguments):
    """Of the slowest rank in each round."""
    context = multiprocessing.get_context("spawn")
    results, port = context.Queue(), free_port()
    ranks = [context.Process(target=rank_main, args=(r, arguments, port, results)) for r in range(arguments.ranks)]
    for rank in ranks:
        rank.start()
    times = [results.get(timeout=600)[1] for _ in ranks]
    for rank in ranks:
        rank.join()
    return [max(each) for each in zip(*times, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="where to write the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = model_of(arguments.width, arguments.layers)
    numel = sum(param.numel() for param in model.parameters())
    before = torch_seconds(model, arguments.rounds)
    own = engine_seconds(arguments)
    after = torch_seconds(model, arguments.rounds)  # on both sides: the machine may have changed
    alone, step = min(before + after), min(own)
    travel = copy_seconds(2 * numel // arguments.ranks, arguments.rounds)
    bound = alone / arguments.ranks + travel
    figures = {
        "cpu": cpu_name(), "cores": os.cpu_count(), "torch": torch.__version__, "ranks": arguments.ranks,
        "stage": arguments.stage, "matrix elements": numel, "torch's Muon, seconds": alone,
        "torch's Muon, median": statistics.median(before + after), "copy of 2 M / N bf16, seconds": travel,
        "step, seconds": step, "step, median": statistics.median(own), "step / (torch / N + copy)": step / bound,
        "goal": GOAL, "load": os.getloadavg()[0],
    }  # fmt: skip
    print(json.dumps(figures, indent=1))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
