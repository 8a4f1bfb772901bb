#!/usr/bin/env python3
"""How much memory a model of a billion parameters needs whose states lie in files: the peak of one rank on the CPU.

    .venv/bin/python bench/offload_billion.py --dir DIRECTORY  # bench/results/offload_billion-DATE.{md,json}

The model is made under zeroshard.Init, in bf16, and trained for a few steps at stage 3, in a process for each row: with
optimizer states in files, with parameters there, too, and with reduced gradients as well. What the interpreter and
torch need is in the figures.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 2048
IN_FILES = {
    "optimizer": "optimizer states",
    "both": "optimizer states and parameters",
    "all": "optimizer states, parameters and gradients",
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, help="on the disk that is used (default: a temporary directory)")
    parser.add_argument("--layers", type=int, default=240, help=f"of {WIDTH} x {WIDTH} weights")
    parser.add_argument("--rows", type=int, default=16, help="of the batch")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path, help="without suffix (default: bench/results/offload_billion-DATE)")
    parser.add_argument("--train", choices=IN_FILES, help=argparse.SUPPRESS)
    return parser.parse_args()


def resident(name):
    """VmRSS or, at its highest, VmHWM, in bytes."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def train(arguments):
    """One rank: prints what it needed."""
    import torch
    import zeroshard

    at_start = resident("VmRSS")
    files = {"device": "nvme", "nvme_path": str(arguments.dir)}
    zero = {"stage": 3, "offload_optimizer": files}
    if arguments.train in ("both", "all"):
        zero["offload_param"] = files | {"max_in_cpu": 0}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": zero,
        "bf16": {"enabled": True},
        "zeroshard": {"offload": {"gradients": "nvme" if arguments.train == "all" else "auto"}},
    }
    torch.manual_seed(0)
    with zeroshard.Init(config_dict_or_path=config):
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(arguments.layers)))
    engine = zeroshard.initialize(model=model, config=config)[0]
    made, times = resident("VmHWM"), []
    for step in range(arguments.steps):
        torch.manual_seed(step)
        begin = time.perf_counter()
        engine.backward(engine(torch.randn(arguments.rows, WIDTH, dtype=torch.bfloat16)).float().square().mean())
        engine.step()
        times.append(time.perf_counter() - begin)
    facts = {"numel": arguments.layers * WIDTH**2, "at_start": at_start, "peak_made": made, "peak": resident("VmHWM")}
    facts |= {"step_s": times, "digest": engine.parameter_digest(), "tiers": engine.memory_report()["tiers"]}
    print(json.dumps(facts))


def main():
    arguments = parse_arguments()
    if arguments.train:
        train(arguments)
        return
    rows = {}
    with tempfile.TemporaryDirectory(dir=arguments.dir, prefix="zeroshard-bench-") as directory:
        for what in IN_FILES:
            command = [sys.executable, __file__, "--train", what, "--dir", directory]
            command += [f"--{name}={getattr(arguments, name)}" for name in ("layers", "rows", "steps")]
            output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
            rows[what] = json.loads(output.splitlines()[-1])
    assert len({facts["digest"] for facts in rows.values()}) == 1, "the bits differ"
    write(arguments, rows)


def write(arguments, rows):
    date = datetime.date.today().isoformat()
    out = arguments.out or ROOT / f"bench/results/offload_billion-{date}"
    machine = {"cpu": cpu_name(), "processors": os.cpu_count(), "kernel": platform.release(), "date": date}
    command = f"bench/offload_billion.py --layers {arguments.layers} --rows {arguments.rows} --steps {arguments.steps}"
    out.with_suffix(".json").write_text(
        json.dumps({"command": command, "machine": machine, "rows": rows}, indent=1) + "\n"
    )
    lines = [
        "# Memory of a model of a billion parameters",
        "",
        f"`{command}`, {machine['cpu']}, {machine['processors']} processors, Linux {machine['kernel']}, {date}. "
        "One rank on the CPU, bf16, AdamW, stage 3.",
        "",
        "| in files | parameters | peak resident | of this before the engine | planned in memory | in files |",
        "|---|---|---|---|---|---|",
    ]
    for what, facts in rows.items():
        tiers = {name: tier["planned"] / 2**30 for name, tier in facts["tiers"].items()}
        lines.append(
            f"| {IN_FILES[what]} | {facts['numel'] / 1e6:.0f} M | {facts['peak'] / 2**30:.2f} GiB | "
            f"{facts['at_start'] / 2**30:.2f} GiB | {tiers['device']:.2f} GiB | {tiers['file']:.2f} GiB |"
        )
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
