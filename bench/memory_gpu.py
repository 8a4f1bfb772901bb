#!/usr/bin/env python3
"""Device memory that no plan of tensors has: torch's context, NCCL, what the allocator holds; and a step beside its
plan.

    bench/memory_gpu.py
    bench/memory_gpu.py --device cpu --small # only shows that it runs

A fresh process tells at each point how much of the card is in use, less what was in use before it began. Each line is
what was added since the line before. On a CPU it is the process's resident memory.
"""

import subprocess
import sys

import torch
from gpubench import results
from gpubench.llama import SHAPES, Llama, build, tokens
from gpubench.measuring import parse_arguments, synchronize
from gpubench.peers import Zeroshard, join_group_of_one


def used_before():
    """Bytes of the first card that are in use, by a program that makes no context."""
    query = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]) << 20


def used(device):
    synchronize(device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total - free
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def main():
    arguments = parse_arguments(__doc__, shape="125m")
    before = used_before() if arguments.device == "cuda" else None
    name = "small" if arguments.small else arguments.shape
    device, shape = arguments.place, SHAPES[name]
    last = used(device) if before is None else before
    begin, rows, figures = last, [], {}

    def note(what):
        nonlocal last
        now = used(device)
        figures[what] = now - last
        rows.append([what, f"{(now - last) / 1e6:.1f}", f"{(now - begin) / 1e6:.1f}"])
        last = now

    torch.zeros(1, device=device)
    note("context")
    a = torch.randn(64, 64, device=device).bfloat16()
    (a @ a).sum().item()
    note("cuBLAS, first kernels")
    join_group_of_one(device)
    torch.distributed.all_reduce(torch.zeros(1, device=device))
    note("NCCL, one rank" if device.type == "cuda" else "Gloo, one rank")
    peer = Zeroshard(build(lambda: Llama(shape), device), shards=True)
    note("an engine")
    for step in range(3):
        peer.backward(tokens(shape, device, step))
        peer.update()
    note("three steps")
    report = peer.engine.memory_report()
    figures["planned"], figures["ledger"] = report["planned_total"], report["measured_total"]
    rows.append(["planned, without activations", "", f"{report['planned_total'] / 1e6:.1f}"])
    rows.append(["the ledger's peak", "", f"{report['measured_total'] / 1e6:.1f}"])
    if device.type == "cuda":
        figures["allocated_peak"], figures["reserved"] = torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()
        rows.append(["torch's allocator: peak, with activations", "", f"{figures['allocated_peak'] / 1e6:.1f}"])
        rows.append(["torch's allocator: held now", "", f"{figures['reserved'] / 1e6:.1f}"])
    results.write(arguments, f"memory {name}", figures, results.table(["what", "MB added", "MB in all"], rows))
    peer.close()
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
