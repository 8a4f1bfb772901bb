#!/usr/bin/env python3
"""Times a training step of two hosts with two ranks each over a slow link, beside FSDP2's HSDP over Gloo.

The arms: one copy of the states over all ranks, in two levels and flat over Gloo; a replica of the states on each host
(zeroshard.mesh.shard), with exact sums of gradients and with sums in 8 bits; and FSDP2 on a mesh of hosts and ranks,
which also has a replica on each host.

    bench/hosts.py                       # as root; writes bench/results/hosts-DATE.{md,json}

The hosts are namespaces (tests/python/hosts.py) whose link tc slows down in both directions. Each process has all
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
ARMS = {
    "two levels": {"transport": "auto"},
    "flat": {"transport": "process_group"},
    "replicas": {"mesh": {"shard": "host"}},
}
CODED = "replicas, 8 bits"
PEER = "FSDP2 HSDP"
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

    def make_layers():
        torch.manual_seed(0)
        return [torch.nn.Linear(arguments.width, arguments.width) for _ in range(arguments.layers)]

    def begin(own, **zero):
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "zero_optimization": {"stage": arguments.rank, "stage3_param_persistence_threshold": 0, **zero},
            "optimizer": {"type": "AdamW"},
            "zeroshard": own,
        }
        engine = zeroshard.initialize(model=torch.nn.Sequential(*make_layers()), config=config)[0]

        def step(rows):
            engine.backward(engine(rows).square().mean())
            engine.step()

        return engine, step

    def begin_peer():
        from torch.distributed.fsdp import fully_shard

        mesh = torch.distributed.init_device_mesh("cpu", (HOSTS, RANKS), mesh_dim_names=("replicate", "shard"))
        model = torch.nn.Sequential(*make_layers())
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step(rows):
            model(rows).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    engines, steps = {}, {}
    for name, own in ARMS.items():
        engines[name], steps[name] = begin(own)
    steps[CODED] = begin(ARMS["replicas"], zero_quantized_gradients=True)[1]
    if arguments.rank == 3:  # FSDP2 has no other stage
        steps[PEER] = begin_peer()
    data = torch.Generator().manual_seed(torch.distributed.get_rank())
    rounds = []
    for _ in range(arguments.rounds + 1):
        rows = torch.randn(4, arguments.width, generator=data)
        measured = {}
        for name, step in steps.items():
            torch.distributed.barrier()
            start, sent = time.perf_counter(), sent_bytes()
            step(rows)
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
        for name in rounds[0]
    }
    ratios = {
        name: statistics.median(each[name]["seconds"] / each["flat"]["seconds"] for each in rounds) for name in medians
    }
    if PEER in medians:
        ratios["replicas to the peer"] = statistics.median(
            each["replicas"]["seconds"] / each[PEER]["seconds"] for each in rounds
        )
    return {"medians": medians, "ratios": ratios, "digests": found["digests"]}


def measure(arguments):
    stages = {stage: summarise(run_hosts(arguments, stage)) for stage in arguments.stages.split(",")}
    parameters = arguments.layers * arguments.width * (arguments.width + 1)
    lines = [
        f"# Two hosts with {RANKS} ranks each, link of {arguments.rate} in each direction",
        "",
        f"`bench/hosts.py` on {cpu_name()}, {os.cpu_count()} cores for all {HOSTS * RANKS} ranks; fp32, {parameters:,}"
        f" parameters, medians of {arguments.rounds} rounds. Host 0 sends:",
        "",
        "| stage | arm | step | of flat | MB | |",
        "|---|---|---|---|---|---|",
    ]
    for stage, found in stages.items():
        for name, medians in found["medians"].items():
            said = (
                "the bits of all"
                if found["digests"] == 1 and name in ARMS
                else "DIFFERENT BITS"
                if name in ARMS
                else ""
            )
            if name == CODED:
                said = f"{medians['seconds'] / found['medians']['replicas']['seconds']:.2f} of exact sums"
            if name == "replicas" and PEER in found["medians"]:
                said += f", {found['ratios']['replicas to the peer']:.2f} of {PEER}"
            lines.append(
                f"| {stage} | {name} | {medians['seconds']:.3f} s | {found['ratios'][name]:.2f} | "
                f"{medians['bytes'] / 1e6:.1f} | {said} |"
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
