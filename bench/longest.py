#!/usr/bin/env python3
"""The longest sequence that trains in a given memory: plain Trainer, and two ranks that share rows, in tiles.

    sudo .venv/bin/python bench/longest.py [--memory-gib 2] [--factor 16]

All processes of a try are in one control group with that limit, which kills them when they pass it. Plain Trainer is
tried with longer and longer sequences until it is killed. Then ranks with sequence parallelism, tiles, activation
checkpoints in files and the optimizer states sharded train a sequence that is `factor` times as long. The memory that
each rank took beside what it held when all was imported stands beside what `zeroshard plan` says.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import cpu_name, free_port

ROOT = Path(__file__).resolve().parent.parent
GROUPS = Path("/sys/fs/cgroup/memory") if Path("/sys/fs/cgroup/memory").is_dir() else Path("/sys/fs/cgroup")
SIZES = {
    "vocab_size": 32000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1 << 20,
    "tie_word_embeddings": True,
    "use_cache": False,
}
STEPS = 2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory-gib", type=float, default=2)
    parser.add_argument("--factor", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--plain", type=int, help="the longest of plain Trainer, where it is known")
    parser.add_argument("--worker", choices=["plain", "shared"], help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


class MemoryGroup:
    """A control group (version 1 or 2) that kills its processes when they take more than `limit` bytes together."""

    def __init__(self, limit):
        self._path = GROUPS / f"longest-{os.getpid()}"
        self._path.mkdir()
        is_v1 = (self._path / "memory.limit_in_bytes").exists()
        (self._path / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(limit))
        self._stat = "rss" if is_v1 else "anon"

    def run(self, commands):
        """Runs processes to their end; their last lines as JSON, or None if one was killed. And the most memory."""
        join = f"echo $$ > {self._path}/cgroup.procs; exec "
        processes = []
        for command, variables in commands:
            line = ["bash", "-c", join + '"$@"', "_", *command]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
            processes.append(subprocess.Popen(line, env=os.environ | variables, **pipes))
        most = 0
        while any(process.poll() is None for process in processes):
            stat = dict(line.split() for line in (self._path / "memory.stat").read_text().splitlines())
            most = max(most, int(stat[self._stat]))
            if any(process.poll() not in (None, 0) for process in processes):
                for process in processes:
                    process.send_signal(signal.SIGKILL)
            time.sleep(0.05)
        if any(process.returncode != 0 for process in processes):
            for process in processes:
                process.stdout.close()
            return None, most
        return [json.loads(process.stdout.read().splitlines()[-1]) for process in processes], most

    def remove(self):
        self._path.rmdir()


def make_model(length):
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(attn_implementation="sdpa", **SIZES)).train()
    return model, torch.randint(0, SIZES["vocab_size"], (1, length))


def work_plain(length):
    import transformers

    model, ids = make_model(length)
    rows = [{"input_ids": ids[0], "labels": ids[0]}] * STEPS
    with tempfile.TemporaryDirectory() as folder:
        options = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
        options |= {"per_device_train_batch_size": 1, "max_steps": STEPS, "logging_strategy": "no"}
        arguments = transformers.TrainingArguments(folder, **options)
        loss = transformers.Trainer(model, arguments, train_dataset=rows).train().training_loss
    print(json.dumps({"loss": loss}))


def resident():
    """Bytes of this process in memory that no file backs, now."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def watch(most, done):
    while not done.wait(0.01):
        most[0] = max(most[0], resident())


def work_shared(length):
    import threading

    import transformers.trainer  # noqa: F401 - imports what a first step would import
    import zeroshard

    make_model(1)
    begin = resident()
    model, ids = make_model(length)
    ranks = int(os.environ["WORLD_SIZE"])
    config = {
        "train_batch_size": 1,
        "sequence_parallel_size": ranks,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none", "nvme_path": tempfile.gettempdir()}},
        "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
        "zeroshard": {"offload": {"activations": "nvme"}},
    }
    model.gradient_checkpointing_enable()
    zeroshard.tile(model)
    engine, *_ = zeroshard.initialize(model=model, config=config)
    batch = {"input_ids": ids, "labels": ids}
    most, done, losses = [0], threading.Event(), []
    watcher = threading.Thread(target=watch, args=(most, done))
    watcher.start()
    for piece in zeroshard.sequence_parallel(engine, [batch] * (STEPS // ranks)):  # as many for each rank
        loss = engine(**piece).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    done.set()
    watcher.join()
    print(json.dumps({"loss": sum(losses) / len(losses), "before": begin, "most": most[0]}))


def command(kind, length):
    return [sys.executable, __file__, "--worker", kind, "--length", str(length)]


def longest_plain(group):
    """Doubles the length until it is killed, then halves the gap to within 5 %."""
    fits, fails = 0, None
    length = 1024
    while fails is None or fails - fits > fits // 20:
        told, most = group.run([(command("plain", length), {"OMP_NUM_THREADS": str(os.cpu_count())})])
        print(f"plain Trainer, {length} tokens: {'killed' if told is None else f'{most / 2**20:.0f} MiB at most'}")
        fits, fails = (length, fails) if told else (fits, length)
        length = fits * 2 if fails is None else (fits + fails) // 2 // 64 * 64
        if length <= fits:
            break
    return fits


def planned(folder, length, ranks):
    (folder / "config.json").write_text(
        json.dumps(SIZES | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    )
    arguments = ["--model", folder, "--world-size", ranks, "--stage", 3, "--dtype", "fp32", "--sequence-length", length]
    arguments += ["--sequence-parallel", ranks, "--checkpoint-activations", "--tile", "--batch", 1, "--json"]
    program = ROOT / ".venv/bin/zeroshard"
    return json.loads(subprocess.run([program, "plan", *map(str, arguments)], capture_output=True, check=True).stdout)


def main():
    options = parse_arguments()
    if options.worker:
        work_plain(options.length) if options.worker == "plain" else work_shared(options.length)
        return
    group = MemoryGroup(int(options.memory_gib * 2**30))
    try:
        plain = options.plain or longest_plain(group)
        length = plain * options.factor
        world = {"WORLD_SIZE": options.ranks, "LOCAL_WORLD_SIZE": options.ranks, "MASTER_ADDR": "127.0.0.1"}
        world |= {"MASTER_PORT": free_port(), "OMP_NUM_THREADS": 1}
        commands = []
        for rank in range(options.ranks):
            variables = world | {"RANK": rank, "LOCAL_RANK": rank}
            commands.append((command("shared", length), {name: str(value) for name, value in variables.items()}))
        begin = time.monotonic()
        told, most = group.run(commands)
        seconds = (time.monotonic() - begin) / STEPS
    finally:
        group.remove()
    print(f"{cpu_name()}; limit {options.memory_gib} GiB for all processes of a try; {STEPS} steps")
    print(f"plain Trainer: {plain} tokens")
    print(
        f"{options.ranks} ranks, {length} tokens: " + ("killed" if told is None else f"{most / 2**20:.0f} MiB at most")
    )
    for rank in told or []:
        print(f"  a rank: {rank['before'] / 1e6:.0f} MB before, {(rank['most'] - rank['before']) / 1e6:.1f} MB beside")
    print(f"seconds of a step, with its start: {seconds:.0f}")
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(Path(folder), length, options.ranks)
    parts = {"states": plan["total_bytes_per_rank"], "temporary": plan["device"]["temporary_bytes"]}
    parts["activations"] = plan["activations"]["total_bytes"]
    named = ", ".join(f"{name} {value / 1e6:.1f}" for name, value in parts.items())
    print(f"planned for a rank: {sum(parts.values()) / 1e6:.1f} MB ({named})")


if __name__ == "__main__":
    main()
