#!/usr/bin/env python3
"""Times a training step of two hosts with two ranks each over a slow link, beside `zeroshard plan` and FSDP2's HSDP.

The arms: one copy of the states over all ranks, in two levels and flat over Gloo; a replica of the states on each host
(zeroshard.mesh.shard), with exact sums of gradients and with sums in 8 bits; a replica of the parameters on each host
whose hosts share the optimizer states; and FSDP2 on a mesh of hosts and ranks, which also has a replica on each host.

    bench/hosts.py                       # as root; writes bench/results/hosts-DATE.{md,json}

The hosts are namespaces (tests/python/hosts.py) whose link tc slows down in both directions. Each process has all
engines, which take turns: one step each in every round, with the same input, once over the slow link and once over the
bare one. Ratios are taken within a round, and medians over rounds. A step's time is that of rank 0, from a barrier to a
barrier. Bytes are those that host 0 sends. `zeroshard plan --cluster` predicts the steps of zeroshard from the rates of
compute and memory that the same arm has over the bare link, and from the rate of the slow one: the one that tc is told,
and the one that Gloo reaches in both directions when each rank gathers with that of the same number on the other host.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(sys.executable).parent / "zeroshard"
CODED = "replicas, 8 bits"
PEER = "FSDP2 HSDP"
ARMS = {
    "two levels": {"transport": "auto"},
    "flat": {"transport": "process_group"},
    "replicas": {"mesh": {"shard": "host"}},
    "shared states": {"mesh": {"shard": "host", "outer": "optimizer"}},
    CODED: {"mesh": {"shard": "host"}},
}
HOSTS, RANKS = 2, 2
LINKS = ("bare", "slow")
HEADS, MLP, VOCABULARY = 8, 3, 256
PAYLOAD = 1448 / 1538  # of a link's bits, as `zeroshard plan` counts them


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="1gbit", help="as tc says it; default: 1gbit")
    parser.add_argument("--stages", default="1,2,3")
    parser.add_argument("--arms", default=";".join([*ARMS, PEER]), help="default: all, separated by ';'")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=16, help="of a rank's only sequence")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="without suffix (default: bench/results/hosts-DATE)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # a process of a host
    return parser.parse_args()


def model_config(arguments):
    """The config.json of the model that make_model() makes."""
    return {
        "model_type": "llama",
        "hidden_size": arguments.width,
        "intermediate_size": MLP * arguments.width,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }


def make_model(arguments):
    import torch
    from gpubench.llama import Llama, Shape

    torch.manual_seed(0)
    sizes = {"hidden": arguments.width, "layers": arguments.layers, "mlp": MLP * arguments.width, "heads": HEADS}
    return Llama(Shape(**sizes, vocab=VOCABULARY, batch=1, sequence=arguments.tokens))


def training_config(name, stage):
    zero = {"stage": int(stage), "stage3_param_persistence_threshold": 0, "zero_quantized_gradients": name == CODED}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW"},
        "zeroshard": ARMS[name],
    }


def sent_bytes():
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, values = line.strip().partition(":")
        if name == "eth0":
            return int(values.split()[8])
    raise SystemExit("there is no eth0")


def shape(link, arguments):
    """Slows this host's packets down, or no longer. The first rank of a host does it."""
    if os.environ["LOCAL_RANK"] == "0":
        change = f"tbf rate {arguments.rate} burst 128k latency 5ms" if link == "slow" else "pfifo limit 1000"
        subprocess.run(["tc", "qdisc", "replace", "dev", "eth0", "root", *change.split()], check=True)


def make_probe(arguments):
    """A function that returns the bytes per second which Gloo alone sends over the link."""
    import torch
    import torch.distributed as dist

    groups = [dist.new_group(list(range(rank, HOSTS * RANKS, RANKS)), backend="gloo") for rank in range(RANKS)]
    group = groups[dist.get_rank() % RANKS]
    shard = torch.ones((4 + 3 * MLP) * arguments.width**2 // (HOSTS * RANKS))  # of a layer
    outputs = [torch.empty(HOSTS * shard.numel()) for _ in range(2)]

    def probe():
        dist.barrier()
        start, sent = time.perf_counter(), sent_bytes()
        for _ in range(arguments.layers // len(outputs)):
            works = [dist.all_gather_into_tensor(out, shard, group=group, async_op=True) for out in outputs]
            for work in works:
                work.wait()
        dist.barrier()
        return (sent_bytes() - sent) / (time.perf_counter() - start)

    return probe


def begin(name, model, stage):
    """A function that trains one step, and returns the seconds of its passes."""
    import torch
    import zeroshard

    if name == PEER:
        from torch.distributed.fsdp import fully_shard

        mesh = torch.distributed.init_device_mesh("cpu", (HOSTS, RANKS), mesh_dim_names=("replicate", "shard"))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step(tokens):
            start = time.perf_counter()
            model(tokens).loss.backward()
            passes = time.perf_counter() - start
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return passes

        return None, step
    engine = zeroshard.initialize(model=model, config=training_config(name, stage))[0]

    def step(tokens):
        start = time.perf_counter()
        engine.backward(engine(tokens).loss)
        passes = time.perf_counter() - start
        engine.step()
        return passes

    return engine, step


def run_rank(arguments):
    import torch
    import zeroshard

    torch.set_num_threads(1)
    zeroshard.init_distributed()
    barrier = torch.distributed.barrier
    engines, steps = {}, {}
    for name in arguments.arms.split(";"):
        if name == PEER and arguments.stages != "3":  # FSDP2 has no other stage
            continue
        engines[name], steps[name] = begin(name, make_model(arguments), arguments.stages)
    data = torch.Generator().manual_seed(torch.distributed.get_rank())
    probe, rounds = make_probe(arguments), []
    for _ in range(arguments.rounds + 1):
        tokens = torch.randint(VOCABULARY, (1, arguments.tokens), generator=data)
        measured = {link: {} for link in LINKS}
        for link in LINKS:
            barrier()
            shape(link, arguments)
            measured[link]["Gloo"] = {"rate": probe()}
            for name, step in steps.items():
                barrier()
                start, sent = time.perf_counter(), sent_bytes()
                passes = step(tokens)
                barrier()
                seconds = time.perf_counter() - start
                measured[link][name] = {"seconds": seconds, "passes": passes, "bytes": sent_bytes() - sent}
        rounds.append(measured)
    digests = {engine.parameter_digest() for name, engine in engines.items() if engine and name != CODED}
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"rounds": rounds[1:], "digests": len(digests)}), flush=True)


def run_hosts(arguments, stage):
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    from hosts import hosts

    words = [sys.executable, __file__, "--rank", "--stages", stage]
    for name in ("rounds", "rate", "arms", "tokens", "layers", "width"):
        words += [f"--{name}", getattr(arguments, name)]
    launcher = [PROGRAM, "run", "--nproc", RANKS, "--nnodes", HOSTS]
    with tempfile.TemporaryDirectory() as names, hosts(HOSTS, Path(names)) as made:
        started = [
            host.start(*launcher, "--master_addr", "host0", "--node_rank", node, "--no_python", *words)
            for node, host in enumerate(made)
        ]
        said = [process.communicate()[0] for process in started]
    for line in said[0].splitlines():
        if '{"rounds"' in line:
            return json.loads(line[line.index("{") :])
    raise SystemExit("\n".join(said))


def plan(arguments, name, stage, folder, rates):
    """What `zeroshard plan` says of this arm on a machine with these rates, in bytes and operations per second."""
    config = folder / "zeroshard.json"
    config.write_text(json.dumps(training_config(name, stage)))
    words = ["--model", folder, "--config", config, "--cpu", "--cluster", f"{HOSTS}x{RANKS}"]
    words += ["--sequence-length", arguments.tokens, "--network", rates["network"]]
    words += ["--flops", rates["flops"], "--host-bandwidth", rates["memory"], "--json"]
    said = subprocess.run([PROGRAM, "plan", *map(str, words)], capture_output=True, text=True)
    if said.returncode != 0:
        raise SystemExit(said.stderr)
    return json.loads(said.stdout)


def predict(arguments, name, stage, folder, medians):
    """The step that the plan expects over the slow link, from the step over the bare one."""
    bare = medians["bare"][name]
    rates = {"flops": 1e9, "memory": 1e9, "network": arguments.rate}
    at_one = plan(arguments, name, stage, folder, rates)["step"]
    rates["flops"] *= (at_one["forward_s"] + at_one["backward_s"]) / bare["passes"]
    rates["memory"] *= at_one["update_s"] / (bare["seconds"] - bare["passes"])
    told = plan(arguments, name, stage, folder, rates)
    reached = rates | {"network": f"{8 * medians['slow']['Gloo']['rate'] / PAYLOAD}bit"}
    by_gloo = plan(arguments, name, stage, folder, reached)["step"]["total_s"]
    bytes_planned = told["network"]["total_bytes"]
    return {"seconds": told["step"]["total_s"], "by Gloo": by_gloo, "bytes": bytes_planned, "rates": reached}


def summarise(arguments, found, stage, folder):
    """Medians, the median ratio of the times, and what was predicted."""
    rounds = found["rounds"]
    medians = {
        link: {
            name: {key: statistics.median(each[link][name][key] for each in rounds) for key in measured}
            for name, measured in rounds[0][link].items()
        }
        for link in LINKS
    }

    def ratio(name, other):
        if name not in medians["slow"] or other not in medians["slow"]:
            return None
        return statistics.median(each["slow"][name]["seconds"] / each["slow"][other]["seconds"] for each in rounds)

    return {
        "medians": medians,
        "of flat": {name: ratio(name, "flat") for name in medians["slow"] if name != "Gloo"},
        "replicas to the peer": ratio("replicas", PEER),
        "coded to exact": ratio(CODED, "replicas"),
        "predicted": {
            name: predict(arguments, name, stage, folder, medians) for name in medians["slow"] if name in ARMS
        },
        "digests": found["digests"],
    }


def row_of(stage, name, found):
    slow, bare = found["medians"]["slow"][name], found["medians"]["bare"][name]
    said = [f"{found['coded to exact']:.2f} of exact sums"] if name == CODED and found["coded to exact"] else []
    if name in ARMS and name != CODED:
        said.append("the bits of all" if found["digests"] == 1 else "DIFFERENT BITS")
    if name == "replicas" and found["replicas to the peer"]:
        said.append(f"{found['replicas to the peer']:.2f} of {PEER}")
    predicted, expected_bytes = " | ", ""
    if name in found["predicted"]:
        planned = found["predicted"][name]
        both = (planned[rate] for rate in ("seconds", "by Gloo"))
        predicted = " | ".join(f"{seconds:.3f} s, {seconds / slow['seconds']:.2f}" for seconds in both)
        expected_bytes = f"{planned['bytes'] / 1e6:.1f}"
    of_flat = f"{found['of flat'][name]:.2f}" if found["of flat"][name] else ""
    return (
        f"| {stage} | {name} | {bare['seconds']:.3f} s | {slow['seconds']:.3f} s | {predicted} | {of_flat} | "
        f"{slow['bytes'] / 1e6:.1f} | {expected_bytes} | {', '.join(said)} |"
    )


def measure(arguments):
    stages = {}
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "config.json").write_text(json.dumps(model_config(arguments)))
        for stage in arguments.stages.split(","):
            stages[stage] = summarise(arguments, run_hosts(arguments, stage), stage, folder)
        words = [PROGRAM, "plan", "--model", folder, "--world-size", "1", "--json"]
        parameters = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["params"]
    lines = [
        f"# Two hosts with {RANKS} ranks each, link of {arguments.rate} in each direction",
        "",
        f"`{' '.join(sys.argv)}` on {cpu_name()}, {os.cpu_count()} cores for all {HOSTS * RANKS} ranks; fp32, "
        f"{parameters:,} parameters, {arguments.tokens} tokens a rank, medians of "
        f"{arguments.rounds} rounds. Niceness {os.nice(0)}, load average before {before:.1f}. Host 0 sends the MB. "
        "`zeroshard plan --cluster` predicts the step over the slow link from the one over the bare link; the "
        "ratio is to the measured one:",
        "",
        "| stage | arm | bare link | step | predicted | at Gloo's rate | of flat | MB | planned | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for stage, found in stages.items():
        lines += [row_of(stage, name, found) for name in found["of flat"]]
    reached = ", ".join(f"{8e-6 * found['medians']['slow']['Gloo']['rate']:.1f}" for found in stages.values())
    lines += ["", f"Gloo alone sent and received {reached} Mbit/s over the slow link (stages {arguments.stages})."]
    text = "\n".join(lines) + "\n"
    print(text)
    out = arguments.out or ROOT / "bench" / "results" / f"hosts-{datetime.date.today()}"
    out.with_suffix(".md").write_text(text)
    kept = {"arguments": {key: str(value) for key, value in vars(arguments).items()}, "stages": stages}
    out.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    options = parse_arguments()
    run_rank(options) if options.rank else measure(options)
