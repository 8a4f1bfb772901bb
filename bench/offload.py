#!/usr/bin/env python3
"""Optimizer states in swap files: the update's speed beside the disk's, and the memory that training needs.

    .venv/bin/python bench/offload.py --build build/release --dir DIRECTORY  # bench/results/offload-DATE.{md,json}

The update: AdamW over states in a file, and a probe that reads and writes the same bytes of another file at once, with
as many buffers and requests; in turn, round after round, in one process (bench_chunk_store). The ratio is taken per
round.
Memory: the resident set of one rank that trains linear layers at stage 2, with states in memory and in files; the time
of its steps, beside the prediction.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
STEPS = 6


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build/release", help="build directory of bench_chunk_store"
    )
    parser.add_argument("--dir", type=Path, help="on the disk that is measured (default: a temporary directory)")
    parser.add_argument("--millions", type=int, default=64, help="of elements (2^20) whose states are updated")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=24, help="of 2048 x 2048 weights, in training")
    parser.add_argument("--rows", type=int, default=512, help="of the batch, in training: how long the passes take")
    parser.add_argument("--out", type=Path, help="without suffix (default: bench/results/offload-DATE)")
    parser.add_argument("--train", choices=["none", "nvme"], help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="bf16", help=argparse.SUPPRESS)
    parser.add_argument("--moments", default="fp32", help=argparse.SUPPRESS)
    return parser.parse_args()


def train(arguments):
    """One rank: prints its memory before and after the engine is made and trained, in bytes."""
    import torch
    import zeroshard

    def status(name):
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    at_start = status("VmRSS")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(arguments.layers)))
    numel = sum(param.numel() for param in model.parameters())
    zero = {"stage": 2}
    if arguments.train == "nvme":
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": str(arguments.dir)}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": zero,
        "zeroshard": {"moment_dtype": arguments.moments},
    }
    if arguments.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    engine = zeroshard.initialize(model=model, config=config)[0]
    dtype = next(model.parameters()).dtype
    passes, updates = [], []
    for step in range(STEPS):
        torch.manual_seed(step)
        begin = time.perf_counter()
        engine.backward(engine(torch.randn(arguments.rows, 2048, dtype=dtype)).float().square().mean())
        middle = time.perf_counter()
        engine.step()
        passes.append(middle - begin)
        updates.append(time.perf_counter() - middle)
    facts = {"numel": numel, "before": at_start, "resident": status("VmRSS"), "digest": engine.parameter_digest()}
    facts |= {"passes_s": statistics.median(passes[1:]), "update_s": statistics.median(updates[1:])}
    facts["step_s"] = statistics.median(p + u for p, u in zip(passes[1:], updates[1:], strict=True))
    print(json.dumps(facts))


def measure_memory(arguments, directory, dtype, where):
    command = [sys.executable, __file__, "--train", where, "--dtype", dtype, "--dir", directory]
    command += ["--layers", str(arguments.layers), "--rows", str(arguments.rows)]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main():
    arguments = parse_arguments()
    if arguments.train:
        train(arguments)
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir, prefix="zeroshard-bench-") as directory:
        command = [str(arguments.build / "bench/bench_chunk_store"), directory]
        command += [str(arguments.millions), str(arguments.rounds)]
        updates = []
        for buffers, queue in [(4, "io_uring"), (4, "threads"), (1, "io_uring")]:
            run = [*command, str(buffers), queue]
            updates.append(json.loads(subprocess.run(run, stdout=subprocess.PIPE, check=True, text=True).stdout))
        memory = {
            f"{dtype} {where}": measure_memory(arguments, directory, dtype, where)
            for dtype in ("bf16", "fp32")
            for where in ("none", "nvme")
        }
    for dtype in ("bf16", "fp32"):
        assert memory[f"{dtype} none"]["digest"] == memory[f"{dtype} nvme"]["digest"], "the bits differ"
    write(arguments, updates, memory)


def step_table(updates, memory):
    """Steps beside what `zeroshard plan` predicts from a run without files and the disk's rate: the passes, then the
    update or the disk, whichever takes longer."""
    bytes_per_s = 1e9 * updates[0]["probe_gb_per_s"]
    lines = ["", "| training | step | predicted | ratio |", "|---|---|---|---|"]
    for dtype, moved in (("bf16", 24), ("fp32", 16)):
        inside, outside = memory[f"{dtype} none"], memory[f"{dtype} nvme"]
        predicted = inside["passes_s"] + max(inside["update_s"], moved * inside["numel"] / bytes_per_s)
        ratio = outside["step_s"] / predicted
        lines.append(f"| {dtype} nvme | {outside['step_s']:.2f} s | {predicted:.2f} s | {ratio:.2f} |")
    return lines


def write(arguments, updates, memory):
    date = datetime.date.today().isoformat()
    out = arguments.out or ROOT / f"bench/results/offload-{date}"
    machine = {"cpu": cpu_name(), "processors": os.cpu_count(), "kernel": platform.release(), "date": date}
    command = (
        f"bench/offload.py --millions {arguments.millions} --rounds {arguments.rounds} --layers {arguments.layers}"
    )
    result = {"command": command, "machine": machine, "load": os.getloadavg(), "updates": updates, "memory": memory}
    out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        "# Optimizer states in swap files",
        "",
        f"`{command}`, {machine['cpu']}, {machine['processors']} processors, Linux {machine['kernel']}, {date}; "
        f"load at the end {os.getloadavg()[0]:.1f}.",
        "",
        "| queue | buffers | update, GB/s | probe, GB/s | update / probe (least, highest) |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {u['queue']} | {u['buffer_count']} | {u['update_gb_per_s']:.2f} | {u['probe_gb_per_s']:.2f} | "
        f"{u['ratio']:.2f} ({u['least_ratio']:.2f}, {u['highest_ratio']:.2f}) |"
        for u in updates
    ]
    lines += [
        "",
        "| training | parameters | resident, beyond the interpreter | bytes a parameter |",
        "|---|---|---|---|",
    ]
    for name, facts in memory.items():
        own = facts["resident"] - facts["before"]
        lines.append(f"| {name} | {facts['numel'] / 1e6:.0f} M | {own / 2**20:.0f} MiB | {own / facts['numel']:.1f} |")
    lines += step_table(updates, memory)
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
