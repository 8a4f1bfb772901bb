#!/usr/bin/env python3
"""The optimizer's pass over the weights beside what the card's memory can do.

    bench/optimizer_gpu.py
    bench/optimizer_gpu.py --device cpu --small # only shows that it runs

Bytes that AdamW must read and write, over the time of zeroshard's own kernels in one step by torch's profiler, beside
the bytes per second of one large copy in the same run. On a CPU, which has no such kernels, it is the time of the
whole step.
"""

import sys

import torch
from gpubench import results
from gpubench.llama import SHAPES, Llama, build, tokens
from gpubench.measuring import copy_bandwidth, parse_arguments, seconds_of
from gpubench.peers import Zeroshard

GOAL = 0.9
STATE_BYTES = 3 * 8  # master weights and two moments, fp32, read and written
OWN_KERNELS = "zeroshard"  # in the names of all kernels of src/device/kernels.cu
SQUARES = "run_squares"


def kernel_seconds(update):
    """Seconds of zeroshard's kernels in one call: updates, and squares."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        update()
        torch.cuda.synchronize()
    updates = squares = 0.0
    for event in profile.events():
        if event.device_type != torch.autograd.DeviceType.CUDA or OWN_KERNELS not in event.name:
            continue
        seconds = event.time_range.elapsed_us() / 1e6
        if SQUARES in event.name:
            squares += seconds
        else:
            updates += seconds
    return updates, squares


def main():
    arguments = parse_arguments(__doc__, shape="125m", rounds=5)
    name = "small" if arguments.small else arguments.shape
    device, shape = arguments.place, SHAPES[name]
    peer = Zeroshard(build(lambda: Llama(shape), device))
    numel = sum(param.numel() for param in peer.engine.module.parameters())
    gradient_bytes = peer.engine.memory_report()["planned"]["gradients"] / numel
    moved = numel * (STATE_BYTES + gradient_bytes + 2)  # and the bf16 weights are written
    updates, squares, steps = [], [], []
    for number in range(arguments.rounds + 1):
        peer.backward(tokens(shape, device, number))
        if device.type == "cuda" and number % 2 == 0:
            update, square = kernel_seconds(peer.update)
            updates.append(update)
            squares.append(square)
        else:
            steps.append(seconds_of(device, peer.update))
    bandwidth = copy_bandwidth(device, arguments.small)
    figures = {"numel": numel, "bytes": moved, "copy_gb_s": bandwidth / 1e9, "step_ms": min(steps) * 1e3}
    rows = [
        ["bytes of a large copy per second", f"{bandwidth / 1e9:.1f} GB/s"],
        ["step, ms", f"{min(steps) * 1e3:.3f}"],
    ]
    if updates:
        if min(updates) == 0:
            raise SystemExit("optimizer_gpu.py: the profiler saw no kernel of zeroshard's")
        share = moved / min(updates) / bandwidth
        figures |= {"update_ms": min(updates) * 1e3, "squares_ms": min(squares) * 1e3, "share": share}
        rows.append(["updates, ms", f"{min(updates) * 1e3:.3f}"])
        rows.append(["squares, ms", f"{min(squares) * 1e3:.3f}"])
        rows.append(["updates: share of the bandwidth", results.verdict(arguments, share, GOAL, at_most=False)])
    results.write(arguments, f"optimizer {name}", figures, results.table(["what", "measured"], rows))
    peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
