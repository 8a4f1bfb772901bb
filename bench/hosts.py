#!/usr/bin/env python3
"""Times a training step of two hosts with two ranks each over a slow link: in two levels, and flat over Gloo.

    bench/hosts.py                       # as root; writes bench/results/hosts-DATE.{md,json}

The hosts are namespaces (tests/python/hosts.py) whose link tc slows down in both directions. Each process has both
engines, which take turns: one step each in every round, with the same input. Ratios are taken within a round, and
medians over rounds. A step's time is that of rank 0, from a barrier to a barrier. Bytes are those that host 0 sends.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
ARMS = {"two levels": "auto", "flat": "process_group"}
HOSTS, RANKS = 2, 2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="1gbit", help="as tc says it; default: 1gbit")
    parser.add_argument("--stages", default="1,2,3")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="without suffix (default: bench/results/hosts-DATE)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)  # a process of a host, at this stage
    return parser.parse_args()


def sent_bytes():
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, values = line.strip().partition(":")
        if name == "eth0":
            return int(values.split()[8])
    raise SystemExit("there is no eth0")


def run_rank(arguments):
    import torch
    import zeroshard

    torch.set_num_threads(1)
    zeroshard.init_distributed()

    def begin(transport):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(arguments.width, arguments.width) for _ in range(arguments.layers)]
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "zero_optimization": {"stage": arguments.rank, "stage3_param_persistence_threshold": 0},
            "optimizer": {"type": "AdamW"},
            "zeroshard": {"transport": transport},
        }
        return zeroshard.initialize(model=torch.nn.Sequential(*layers), config=config)[0]

    engines = {name: begin(transport) for name, transport in ARMS.items()}
    data = torch.Generator().manual_seed(torch.distributed.get_rank())
    rounds = []
    for _ in range(arguments.rounds + 1):
        rows = torch.randn(4, arguments.width, generator=data)
        measured = {}
        for name, engine in engines.items():
            torch.distributed.barrier()
            start, sent = time.perf_counter(), sent_bytes()
            engine.backward(engine(rows).square().mean())
            engine.step()
            torch.distributed.barrier()
            measured[name] = {"seconds": time.perf_counter() - start, "bytes": sent_bytes() - sent}
        rounds.append(measured)
    if torch.distributed.get_rank() == 0:
        digests = {engine.parameter_digest() for engine in engines.values()}
        print(json.dumps({"rounds": rounds[1:], "digests": len(digests)}), flush=True)
    else:
        for engine in engines.values():
            engine.parameter_digest()


def run_hosts(arguments, stage):
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    from hosts import hosts

    words = [sys.executable, __file__, "--rank", stage, "--rounds", arguments.rounds]
    words += ["--layers", arguments.layers, "--width", arguments.width]
    launcher = [Path(sys.executable).parent / "zeroshard", "run", "--nproc", RANKS, "--nnodes", HOSTS]
    with tempfile.TemporaryDirectory() as folder, hosts(HOSTS, Path(folder)) as made:
        for host in made:
            shape = f"tc qdisc add dev eth0 root tbf rate {arguments.rate} burst 128k latency 50ms"
            if host.start(*shape.split()).wait() != 0:
                raise SystemExit(f"failed: {shape}")
        started = [
            host.start(*launcher, "--master_addr", "host0", "--node_rank", node, "--no_python", *words)
            for node, host in enumerate(made)
        ]
        said = [process.communicate()[0] for process in started]
    for line in said[0].splitlines():
        if '{"rounds"' in line:
            return json.loads(line[line.index("{") :])
    raise SystemExit("\n".join(said))


def summarise(found):
    """Medians, and the median ratio of the times."""
    rounds = found["rounds"]
    medians = {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in ("seconds", "bytes")}
        for name in ARMS
    }
    ratio = statistics.median(each["flat"]["seconds"] / each["two levels"]["seconds"] for each in rounds)
    return {"medians": medians, "speedup": ratio, "digests": found["digests"]}


def measure(arguments):
    stages = {stage: summarise(run_hosts(arguments, stage)) for stage in arguments.stages.split(",")}
    parameters = arguments.layers * arguments.width * (arguments.width + 1)
    lines = [
        f"# Two hosts with {RANKS} ranks each, link of {arguments.rate} in each direction",
        "",
        f"`bench/hosts.py` on {cpu_name()}, {os.cpu_count()} cores for all {HOSTS * RANKS} ranks; fp32, {parameters:,}"
        f" parameters, medians of {arguments.rounds} rounds. Host 0 sends:",
        "",
        "| stage | two levels | flat | speed-up | MB in two levels | MB flat | same bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for stage, found in stages.items():
        two, flat = (found["medians"][name] for name in ARMS)
        lines.append(
            f"| {stage} | {two['seconds']:.3f} s | {flat['seconds']:.3f} s | {found['speedup']:.2f} | "
            f"{two['bytes'] / 1e6:.1f} | {flat['bytes'] / 1e6:.1f} | {'yes' if found['digests'] == 1 else 'NO'} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    out = arguments.out or ROOT / "bench" / "results" / f"hosts-{datetime.date.today()}"
    out.with_suffix(".md").write_text(text)
    kept = {"arguments": {key: str(value) for key, value in vars(arguments).items()}, "stages": stages}
    out.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    options = parse_arguments()
    measure(options) if options.rank is None else run_rank(options)
