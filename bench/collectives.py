#!/usr/bin/env python3
"""Times all-gather and reduction of two CPU ranks: zeroshard's shared memory, Gloo, and memcpy as the ceiling.

    .venv/bin/python bench/collectives.py --build build/release   # writes bench/results/collectives-DATE.{md,json}

The arms take turns, round after round, while the others sleep; ratios are taken within a round, medians over rounds.
An iteration's time is that of the slower rank, from a barrier to the usable result. Gloo is torch.distributed's, over
loopback; its reduction is the faster of all_to_all + sum and its own reduce_scatter. The ceilings copy, or sum, as many
bytes from each rank's own memory, on all ranks at once. Sizes are those of the full buffer on each rank, fp32.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
WORLD_SIZE = 2
CEILING = {"all_gather": "copy", "reduce": "sum"}
GLOO_ARMS = {"all_gather": ["all_gather"], "reduce": ["all_to_all + sum", "reduce_scatter"]}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--sizes", default="64K,256K,1M,4M,16M,64M,256M")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="without suffix (default: bench/results/collectives-DATE)")
    return parser.parse_args()


def parse_size(text):
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]


def gloo_operation(arm, full, shard, scratch):
    rank, numel = dist.get_rank(), shard.numel()
    if arm == "all_gather":
        return lambda: dist.all_gather_single(full, shard)
    if arm == "reduce_scatter":
        return lambda: dist.reduce_scatter_single(shard, full)

    def exchange():
        dist.all_to_all_single(scratch, full)
        torch.add(scratch[:numel], scratch[numel:], out=shard)

    assert arm == "all_to_all + sum" and WORLD_SIZE == 2 and rank < 2
    return exchange


def gloo_rank(rank, port, commands, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
    while (command := commands.get()) is not None:
        arm, size, iterations = command
        full, scratch = torch.ones(size // 4), torch.ones(size // 4)
        shard = torch.ones(size // 4 // WORLD_SIZE)
        operation = gloo_operation(arm, full, shard, scratch)
        operation()
        seconds = []
        for _ in range(iterations):
            dist.barrier()
            start = time.perf_counter()
            operation()
            seconds.append(time.perf_counter() - start)
        slowest = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if rank == 0:
            results.put(slowest.tolist())
    dist.destroy_process_group()


class Gloo:
    def __init__(self):
        context = mp.get_context("spawn")
        self.results = context.Queue()
        self.commands = [context.Queue() for _ in range(WORLD_SIZE)]
        port = 20000 + os.getpid() % 20000
        self.ranks = [
            context.Process(target=gloo_rank, args=(rank, port, self.commands[rank], self.results))
            for rank in range(WORLD_SIZE)
        ]
        for rank in self.ranks:
            rank.start()

    def time(self, arm, size, iterations):
        for queue in self.commands:
            queue.put((arm, size, iterations))
        return self.results.get(timeout=300)

    def close(self):
        for queue in self.commands:
            queue.put(None)
        for rank in self.ranks:
            rank.join(timeout=30)


class Zeroshard:
    def __init__(self, build):
        self.process = subprocess.Popen(
            [build / "bench" / "bench_collectives", str(WORLD_SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def time(self, operation, size, iterations):
        self.process.stdin.write(f"{operation} {size} {iterations}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["seconds"]

    def close(self):
        self.process.stdin.close()
        if self.process.wait(timeout=30) != 0:
            raise RuntimeError("bench_collectives failed")


def measure(zeroshard, gloo, operation, size, rounds):
    """Medians in seconds of each arm, and of the ratios taken within a round."""
    iterations = max(3, min(50, (64 << 20) // size))
    arms, speedups, ceilings = {}, [], []
    for _ in range(rounds):
        row = {
            "zeroshard": zeroshard.time(operation, size, iterations),
            "ceiling": zeroshard.time(CEILING[operation], size, iterations),
        }
        for arm in GLOO_ARMS[operation]:
            row[f"gloo {arm}"] = gloo.time(arm, size, iterations)
        row = {arm: statistics.median(seconds) for arm, seconds in row.items()}
        for arm, seconds in row.items():
            arms.setdefault(arm, []).append(seconds)
        best_gloo = min(seconds for arm, seconds in row.items() if arm.startswith("gloo"))
        speedups.append(best_gloo / row["zeroshard"])
        ceilings.append(row["ceiling"] / row["zeroshard"])
    return {
        "operation": operation,
        "bytes": size,
        "seconds": {arm: statistics.median(seconds) for arm, seconds in arms.items()},
        "speedup_over_gloo": statistics.median(speedups),
        "fraction_of_ceiling": statistics.median(ceilings),
        "rounds": arms,
    }


def describe_machine():
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "torch": torch.__version__,
        "load_before": os.getloadavg()[0],
    }


def render(report):
    lines = [
        "# Collectives of two CPU ranks",
        "",
        f"`{report['command']}`, {report['date']}; {report['machine']['cpu']}, {report['machine']['cores']} cores, "
        f"torch {report['machine']['torch']}; load before the run {report['machine']['load_before']:.1f}. "
        f"Medians of {report['rounds']} interleaved rounds.",
        "",
        "| operation | full buffer | zeroshard | Gloo (its better way) | speed-up | ceiling | share of it |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["results"]:
        seconds = row["seconds"]
        best = min((arm for arm in seconds if arm.startswith("gloo")), key=seconds.get)
        size = row["bytes"]
        label = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        lines.append(
            f"| {row['operation']} | {label} | {seconds['zeroshard'] * 1e3:.3f} ms | {seconds[best] * 1e3:.3f} ms"
            f" ({best.removeprefix('gloo ')}) | {row['speedup_over_gloo']:.1f}x | {seconds['ceiling'] * 1e3:.3f} ms"
            f" | {row['fraction_of_ceiling'] * 100:.0f} % |"
        )
    return "\n".join(lines) + "\n"


def main():
    arguments = parse_arguments()
    date = datetime.date.today().isoformat()
    out = arguments.out or ROOT / "bench" / "results" / f"collectives-{date}"
    machine = describe_machine()
    zeroshard, gloo = Zeroshard(arguments.build), Gloo()
    results = []
    for size in map(parse_size, arguments.sizes.split(",")):
        for operation in CEILING:
            results.append(measure(zeroshard, gloo, operation, size, arguments.rounds))
    zeroshard.close()
    gloo.close()
    command = f"bench/collectives.py --sizes {arguments.sizes} --rounds {arguments.rounds}"
    report = {
        "command": command,
        "date": date,
        "machine": machine,
        "rounds": arguments.rounds,
        "results": results,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    out.with_suffix(".md").write_text(render(report))
    print(render(report))


if __name__ == "__main__":
    main()
