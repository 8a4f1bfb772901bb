#!/usr/bin/env python3
"""`zeroshard train` beside PyTorch's own loops on the same model and rows: speed, start-up, memory, loss curves.

    make demo                     # once: texts and a tokenizer
    bench/setup_peers.sh          # once: DeepSpeed; without it its contestant is left out
    bench/train.py                # writes bench/results/train.json and .md

A Llama of 10 M parameters on Shakespeare's works in fp32, AdamW, clipping. Round after round every contestant runs as
processes of its own, so that slow drifts of the machine hit all alike; ratios are taken per round. One rank has all
cores, two ranks one core each.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import torch
import transformers
from machine import cpu_name

ROOT = Path(__file__).resolve().parents[1]
OPTIMIZER = {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
# name: (kind, ranks)
CONTESTANTS = {
    "zeroshard, 1 rank": ("zeroshard", 1),
    "PyTorch eager": ("eager", 1),
    "torch.compile": ("compile", 1),
    "zeroshard stage 3, 2 ranks": ("zeroshard", 2),
    "FSDP2, 2 ranks": ("fsdp2", 2),
    "Trainer with DeepSpeed stage 3, 2 ranks": ("trainer", 2),
}
# What a contestant's speed is a multiple of.
BASES = {
    "zeroshard, 1 rank": ["PyTorch eager", "torch.compile"],
    "torch.compile": ["PyTorch eager"],
    "zeroshard stage 3, 2 ranks": ["FSDP2, 2 ranks", "Trainer with DeepSpeed stage 3, 2 ranks"],
}
PEERS = ROOT / ".venv-peers/bin/python"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5, help="first steps of a run that are not timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--curve", type=int, default=0, help="compare the losses of that many steps with eager's, too")
    parser.add_argument("--contestants", help="names, separated by semicolons (default: all)")
    parser.add_argument("--model", type=Path, default=ROOT / "runs/shakespeare-model")
    parser.add_argument("--program", type=Path, default=ROOT / ".venv/bin/zeroshard-torch")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/train.json")
    return parser.parse_args()


def has_deepspeed():
    probe = "import importlib.util as u, sys; sys.exit(not (u.find_spec('deepspeed') and u.find_spec('accelerate')))"
    return PEERS.exists() and subprocess.run([PEERS, "-c", probe]).returncode == 0


def prepare(folder, arguments, **shape):
    """A directory with weights, and one document of tokens that is long enough for every run."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(arguments.model, **shape)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder / "model")
    shutil.copy(arguments.model / "tokenizer.json", folder / "model")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    needed = max(arguments.steps, arguments.curve) * arguments.batch * arguments.length + 1
    ids = []
    with open(arguments.model / "train.jsonl") as file:
        for line in file:
            ids += tokenizer.encode(json.loads(line)["text"]).ids
    ids = (ids * (needed // len(ids) + 1))[:needed]
    numpy.save(folder / "data.npy", numpy.array(ids, dtype=numpy.uint16))


def write_config(folder, arguments, steps, stage):
    config = {
        "train_batch_size": arguments.batch,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": OPTIMIZER},
        "zero_optimization": {"stage": stage},
        "train": {
            "model": str(folder / "model"),
            "output": str(folder / "out"),
            "steps": steps,
            "data": {"train": [str(folder / "data.npy")], "length": arguments.length, "shuffle": False},
        },
    }
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def environments(ranks):
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks))}
    if ranks == 1:
        return [os.environ | threads]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = threads | {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"LOCAL_WORLD_SIZE": str(ranks), "DS_ACCELERATOR": "cpu"}
    return [os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def memory_mb(pid):
    """Of a process: all that is resident; the same with pages that several share counted once among them; its own."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        kb = {line.split()[0]: int(line.split()[1]) for line in list(file)[1:]}
    own = kb["Private_Clean:"] + kb["Private_Dirty:"]
    return {"resident": kb["Rss:"] / 1024, "proportional": kb["Pss:"] / 1024, "private": own / 1024}


def run(kind, ranks, folder, arguments, steps):
    """Seconds of each step, seconds to the first step's end, losses, and rank 0's memory in MB after half the steps."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    config = write_config(folder, arguments, steps, 3 if ranks > 1 else 0)
    log = folder / "out" / "metrics.jsonl" if kind == "zeroshard" else folder / "log.jsonl"
    log.unlink(missing_ok=True)
    program = [str(arguments.program), "train", str(config)]
    if kind != "zeroshard":
        python = PEERS if kind == "trainer" else sys.executable
        program = [str(python), "-W", "ignore", str(ROOT / "bench/train_peer.py"), kind, str(config)]
    started = time.time()
    processes, memory = [], None
    errors = folder / "errors.txt"
    try:
        for rank, environment in enumerate(environments(ranks)):
            own = [*program, str(log if rank == 0 else folder / f"log{rank}.jsonl")] if kind != "zeroshard" else program
            pin = ["taskset", "-c", str(rank)] if ranks > 1 else []
            with open(errors, "ab" if rank else "wb") as sink:
                process = subprocess.Popen([*pin, *own], env=environment, stdout=subprocess.DEVNULL, stderr=sink)
            processes.append(process)
        while any(process.poll() is None for process in processes) and not any(each.returncode for each in processes):
            if memory is None and log.exists() and log.read_text().count("\n") > steps // 2:
                with contextlib.suppress(OSError):  # it has just ended
                    memory = memory_mb(processes[0].pid)
            time.sleep(0.02)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(process.returncode != 0 for process in processes):
        sys.exit(f"{kind} with {ranks} ranks failed:\n{errors.read_text()[-2000:]}")
    if memory is None:
        sys.exit(f"{kind} with {ranks} ranks ended before its memory was read: take more --steps")
    records = [record for record in map(json.loads, log.read_text().splitlines()) if "loss" in record]
    times = [record["time"] for record in records]
    seconds = [after - before for before, after in zip(times, times[1:], strict=False)]
    return {
        "steps": seconds[arguments.warmup - 1 :],
        "first_step": times[0] - started,
        "losses": [record["loss"] for record in records],
        "memory_mb": memory,
    }


def measure(folder, arguments, names):
    rounds = []
    for number in range(arguments.rounds):
        rounds.append({})
        for name in names:
            rounds[-1][name] = result = run(*CONTESTANTS[name], folder, arguments, arguments.steps)
            step = statistics.median(result["steps"])
            print(f"round {number + 1}: {name}: {step * 1e3:.0f} ms a step, {result['first_step']:.1f} s to the first")
    return rounds


def measure_alone(folder, arguments, names):
    """The memory of a rank whose model is next to nothing: what a rank costs by itself."""
    folder.mkdir()
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape = argparse.Namespace(**vars(arguments) | {"batch": 2, "length": 16, "warmup": 2})
    steps = 400
    prepare(folder, argparse.Namespace(**vars(shape) | {"steps": steps}), **small, num_key_value_heads=4, head_dim=8)
    return {name: run(*CONTESTANTS[name], folder, shape, steps)["memory_mb"] for name in names}


def table(rounds, names, arguments):
    tokens = arguments.batch * arguments.length
    lines = [
        "| | tokens/s | beside its base | first step after | resident MB |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        each = [round_[name] for round_ in rounds]
        steps = [statistics.median(one["steps"]) for one in each]
        ratios = []
        for base in [base for base in BASES.get(name, []) if base in names]:
            all_ = [statistics.median(r[base]["steps"]) / statistics.median(r[name]["steps"]) for r in rounds]
            ratios.append(f"{statistics.median(all_):.2f} ({min(all_):.2f} to {max(all_):.2f}) of {base}")
        first = statistics.median(one["first_step"] for one in each)
        memory = statistics.median(one["memory_mb"]["resident"] for one in each)
        lines.append(
            f"| {name} | {tokens / statistics.median(steps):.0f} | {'; '.join(ratios)} | {first:.2f} s | {memory:.0f} |"
        )
    return lines


def main():
    arguments = parse_arguments()
    names = arguments.contestants.split(";") if arguments.contestants else list(CONTESTANTS)
    if not arguments.contestants and not has_deepspeed():
        names.remove("Trainer with DeepSpeed stage 3, 2 ranks")
        print(f"without DeepSpeed, which {PEERS} lacks: bench/setup_peers.sh installs it")
    if unknown := set(names) - set(CONTESTANTS):
        sys.exit(f"train.py: unknown contestants {sorted(unknown)}; there are: {'; '.join(CONTESTANTS)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, arguments)
        rounds = measure(folder, arguments, names)
        lines = table(rounds, names, arguments)
        alone = measure_alone(folder / "alone", arguments, [name for name in names if CONTESTANTS[name][1] == 2])
        lines += ["", "Memory of one of two ranks whose model has 0.1 M parameters:", ""]
        lines += ["| | resident MB | shared pages by halves | its own alone |", "|---|---|---|---|"]
        for name, memory in alone.items():
            own = [f"{memory[kind]:.0f}" for kind in ("resident", "proportional", "private")]
            lines.append(f"| {name} | {' | '.join(own)} |")
        if arguments.curve:
            ours = run("zeroshard", 1, folder, arguments, arguments.curve)["losses"]
            theirs = run("eager", 1, folder, arguments, arguments.curve)["losses"]
            apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
            ends = f"from {theirs[0]:.3f} to {theirs[-1]:.3f}"
            lines += ["", f"Losses of {arguments.curve} steps, {ends}: at most {apart:.1e} from eager's."]
    head = [
        "# Training a Hugging Face directory without Python, beside PyTorch",
        "",
        f"    {' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
        "",
        f"{cpu_name()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, "
        f"{platform.system()} {platform.release()}; {arguments.rounds} rounds of {arguments.steps} steps, interleaved; "
        f"{arguments.batch} rows of {arguments.length} tokens. Medians; in brackets the range of rounds.",
        "",
    ]
    text = "\n".join([*head, *lines]) + "\n"
    print(text)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        json.dumps({"arguments": sys.argv[1:], "rounds": rounds, "alone_mb": alone}, indent=1) + "\n"
    )
    arguments.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
