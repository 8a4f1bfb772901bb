#!/usr/bin/env python3
"""Forward and backward with parameters, or inputs of layers, in files: what reading beside them costs.

    .venv/bin/python bench/offload_passes.py --dir DIRECTORY  # writes bench/results/offload_passes-DATE.{md,json}

One rank on the CPU, bf16, stage 3. Parameters: linear layers that are frozen, and a trained one at the end, so that the
files are read and not written; in memory, in files, and in files with one buffer, where nothing overlaps. --rows says
how long the passes take. Inputs of layers: the same layers, each recomputed in backward, all trained; inputs in memory,
and in files.
All engines take turns, one step of each in every round; losses must be equal. Ratios are taken per round.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

from machine import cpu_name
from turns import answer_steps, take_turns

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 2048
WARM_UP = 2
ARMS = {
    "parameters": ["in memory", "in files", "in files, one buffer"],
    "inputs of layers": ["in memory", "in files"],
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, help="on the disk that is measured (default: a temporary directory)")
    parser.add_argument("--layers", type=int, default=24, help=f"of {WIDTH} x {WIDTH} weights")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 128, 512], help="of the batch")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, help="without suffix (default: bench/results/offload_passes-DATE)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def configuration(arguments):
    what, where = arguments.worker
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": zero,
        "bf16": {"enabled": True},
    }
    if where == "in memory":
        return config
    zero["offload_param"] = {"nvme_path": str(arguments.dir)}
    if what == "parameters":
        zero["offload_param"] |= {"device": "nvme", "max_in_cpu": 0, "buffer_count": 1 if "one" in where else 5}
    else:
        config["zeroshard"] = {"offload": {"activations": "nvme"}}
    return config


def make_model(torch, zeroshard, arguments):
    recomputed = arguments.worker[0] == "inputs of layers"

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, rows):
            return zeroshard.recompute(self.linear, rows, use_reentrant=False) if recomputed else self.linear(rows)

    model = torch.nn.Sequential(*(Layer() for _ in range(arguments.layers)), torch.nn.Linear(WIDTH, 64, bias=False))
    if not recomputed:
        model[:-1].requires_grad_(False)
    return model


def begin(arguments):
    """In one engine's process. A step returns its loss, and the seconds of its passes."""
    import torch
    import zeroshard

    torch.manual_seed(0)
    model = make_model(torch, zeroshard, arguments)
    engine = zeroshard.initialize(model=model, config=configuration(arguments))[0]

    def step(number):
        torch.manual_seed(number)
        # Their gradients are asked for, so that backward goes through the frozen layers, too.
        rows = torch.randn(arguments.rows[0], WIDTH, dtype=torch.bfloat16, requires_grad=True)
        at_start = time.perf_counter()
        loss = engine(rows).float().square().mean()
        engine.backward(loss)
        passes = time.perf_counter() - at_start
        engine.step()
        return {"loss": loss.item(), "passes": passes}

    return step


def measure(arguments, what, rows, directory):
    commands = {}
    for number, where in enumerate(ARMS[what]):
        swap = Path(directory) / f"{what.split()[0]}-{rows}-{number}"
        swap.mkdir()
        command = [sys.executable, __file__, "--worker", what, where, "--dir", str(swap)]
        command += ["--layers", str(arguments.layers), "--rows", str(rows)]
        commands[where] = command, {"OMP_NUM_THREADS": str(os.cpu_count())}
    rounds = take_turns(commands, WARM_UP + arguments.rounds)
    for number, steps in enumerate(rounds):
        assert len({each["loss"] for each in steps.values()}) == 1, f"losses of round {number} differ: {steps}"
    return {where: [steps[where]["passes"] for steps in rounds[WARM_UP:]] for where in ARMS[what]}


def rows_of(what, rows, measured):
    in_memory = measured["in memory"]
    for where, passes in measured.items():
        ratios = sorted(each / plain for each, plain in zip(passes, in_memory, strict=True))
        yield (
            f"| {what} | {rows} | {where} | {statistics.median(passes):.3f} s | "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}, {ratios[-1]:.2f}) |"
        )


def main():
    arguments = parse_arguments()
    if arguments.worker:
        answer_steps(lambda: begin(arguments))
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir, prefix="zeroshard-bench-") as directory:
        measured = {what: {rows: measure(arguments, what, rows, directory) for rows in arguments.rows} for what in ARMS}
    date = datetime.date.today().isoformat()
    out = arguments.out or ROOT / f"bench/results/offload_passes-{date}"
    rows = " ".join(map(str, arguments.rows))
    command = f"bench/offload_passes.py --layers {arguments.layers} --rows {rows} --rounds {arguments.rounds}"
    machine = {"cpu": cpu_name(), "processors": os.cpu_count(), "kernel": platform.release(), "date": date}
    result = {"command": command, "machine": machine, "load": os.getloadavg(), "measured": measured}
    out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        "# Parameters and inputs of layers in files",
        "",
        f"`{command}`, {machine['cpu']}, {machine['processors']} processors, Linux {machine['kernel']}, {date}; "
        f"load at the end {os.getloadavg()[0]:.1f}. {arguments.layers} layers of {WIDTH} x {WIDTH}, bf16, one rank on "
        "the CPU, stage 3.",
        "",
        "| what | rows | where | forward and backward | / in memory (least, highest) |",
        "|---|---|---|---|---|",
    ]
    for what, by_rows in measured.items():
        for rows, passes in by_rows.items():
            lines += rows_of(what, rows, passes)
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
