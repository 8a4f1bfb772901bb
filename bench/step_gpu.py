#!/usr/bin/env python3
"""One training step of a Llama at stage 3 with one rank, beside plain eager PyTorch and FSDP2, in turns.

    bench/step_gpu.py --shape 125m         # or 1.3b
    bench/step_gpu.py --device cpu --small # only shows that it runs

Each peer is paired with plain PyTorch: round after round one takes some steps, then the other, and a ratio is taken
within the round. So two models are in memory at a time. Times are from an idle device to an idle device. Losses of a
pair must agree.
"""

import statistics
import sys

import torch
from gpubench import results
from gpubench.llama import SHAPES, Llama, build, tokens
from gpubench.measuring import parse_arguments, quartiles, seconds_of
from gpubench.peers import PEERS

GOAL = 1.02
TOLERANCE = 2e-2  # of losses: bf16, and gradients that are rounded at different places


class Runner:
    """A peer, warm, and its losses.

    `peak_gigabytes`: the most that torch had allocated in three steps, less what it had before the peer was built.
    """

    def __init__(self, name, shape, device):
        self.shape, self.device, self.losses, self.steps = shape, device, [], 0
        on_gpu = device.type == "cuda"
        before = torch.cuda.memory_allocated() if on_gpu else 0
        self.peer = PEERS[name](build(lambda: Llama(shape), device))
        self.batches = [tokens(shape, device, step) for step in range(4)]
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.seconds(3)
        self.peak_gigabytes = (torch.cuda.max_memory_allocated() - before) / 1e9 if on_gpu else 0

    def step(self):
        self.losses.append(self.peer.backward(self.batches[self.steps % 4]))
        self.peer.update()
        self.steps += 1

    def seconds(self, steps):
        return seconds_of(self.device, lambda: [self.step() for _ in range(steps)]) / steps


def worst_difference(one, other):
    """Of the first losses: those of many steps drift apart, by attention's backward alone, whose sums have no order."""
    return max(abs(float(a) - float(b)) / abs(float(b)) for a, b in zip(one[:4], other[:4], strict=True))


def take_turns(base, own, rounds, steps):
    """Medians of a step's milliseconds, and quartiles of the ratio to the base within a round."""
    runners, times = [base, own], [[], []]
    for number in range(rounds):
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            times[index].append(runners[index].seconds(steps))
    base_ms, own_ms = (statistics.median(each) * 1e3 for each in times)
    return base_ms, own_ms, quartiles([mine / other for other, mine in zip(*times, strict=True)])


def race(name, shape, device, rounds, steps):
    """`name` and plain in turns."""
    plain, own = Runner("plain", shape, device), Runner(name, shape, device)
    plain_ms, own_ms, ratio = take_turns(plain, own, rounds, steps)
    difference = worst_difference(own.losses, plain.losses)
    own.peer.close()
    return {
        "plain_ms": plain_ms,
        "ms": own_ms,
        "ratio": ratio,
        "loss_difference": difference,
        "peak_gigabytes": own.peak_gigabytes,
        "plain_peak_gigabytes": plain.peak_gigabytes,
    }


def main():
    arguments = parse_arguments(__doc__, shape="125m", rounds=7, steps=5)
    name = "small" if arguments.small else arguments.shape
    if arguments.small:
        arguments.rounds, arguments.steps = 2, 2
    shape, figures = SHAPES[name], {}
    for peer in ("zeroshard", "zeroshard_sharded", "fsdp2"):
        figures[peer] = race(peer, shape, arguments.place, arguments.rounds, arguments.steps)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
        write(arguments, name, figures)
    return 0 if all(each["loss_difference"] <= TOLERANCE for each in figures.values()) else 1


def write(arguments, name, figures):
    rows = []
    for peer, each in figures.items():
        low, middle, high = each["ratio"]
        told = results.verdict(arguments, middle, GOAL) if peer.startswith("zeroshard") else f"{middle:.3g}"
        rows.append([peer, f"{each['ms']:.2f}", f"{each['plain_ms']:.2f}", f"{told}, {low:.3f} to {high:.3f}"])
        rows[-1] += [
            f"{each['peak_gigabytes']:.2f} / {each['plain_peak_gigabytes']:.2f}",
            f"{each['loss_difference']:.1e}",
        ]
    header = ["peer", "ms a step", "plain beside it", "ratio, quartiles", "peak GB / plain's", "losses differ by"]
    results.write(arguments, f"step {name}", figures, results.table(header, rows))


if __name__ == "__main__":
    sys.exit(main())
