#!/usr/bin/env python3
"""Optimizer states in swap files: a step of zeroshard beside one of DeepSpeed, whose swapper goes by libaio.

    bench/setup_peers.sh                                    # once; the system needs libaio-dev
    .venv/bin/python bench/offload_peers.py --dir DIRECTORY  # writes bench/results/offload_peers-DATE.{md,json}

Each library has a process of its own, which makes one engine for the same model at stage 3. The processes take turns:
one step of each in every round, on the same data. Losses must agree. Ratios are taken per round.
DeepSpeed needs as many buffers as its pipeline has tensors on their way; zeroshard has its own default.
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
DEEPSPEED_BUFFERS = 12
ARMS = {
    "zeroshard": {},
    "DeepSpeed, pipelined": {"pipeline_read": True, "pipeline_write": True, "buffer_count": DEEPSPEED_BUFFERS},
    "DeepSpeed": {"buffer_count": DEEPSPEED_BUFFERS},
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, help="on the disk that is measured (default: a temporary directory)")
    parser.add_argument("--layers", type=int, default=24, help=f"of {WIDTH} x {WIDTH} weights")
    parser.add_argument("--rows", type=int, default=512, help="of the batch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peers-python", default=str(ROOT / ".venv-peers/bin/python"))
    parser.add_argument("--out", type=Path, help="without suffix (default: bench/results/offload_peers-DATE)")
    parser.add_argument("--worker", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--dtype", help=argparse.SUPPRESS)
    return parser.parse_args()


def configuration(arguments):
    offload = {"device": "nvme", "nvme_path": str(arguments.dir), "pin_memory": False} | ARMS[arguments.worker]
    zero = {"stage": 3, "offload_optimizer": offload, "stage3_param_persistence_threshold": 0}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": zero,
        "bf16": {"enabled": arguments.dtype == "bf16"},
    }
    if arguments.worker != "zeroshard":
        # As large as a layer, which zeroshard updates at a time.
        zero["sub_group_size"] = WIDTH * WIDTH
        config["aio"] = {"block_size": 2**20, "queue_depth": 32, "thread_count": 1, "overlap_events": True}
    return config


def make_engine(arguments, model):
    if arguments.worker == "zeroshard":
        import zeroshard

        return zeroshard.initialize(model=model, config=configuration(arguments))[0]
    import deepspeed

    deepspeed.init_distributed("gloo", verbose=False)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=configuration(arguments))[0]


def begin(arguments):
    """In one library's process. A step returns its loss and times in seconds."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(arguments.layers)))
    engine = make_engine(arguments, model)
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32

    def step(number):
        torch.manual_seed(number)
        rows = torch.randn(arguments.rows, WIDTH, dtype=dtype)
        at_start = time.perf_counter()
        loss = engine(rows).float().square().mean()
        engine.backward(loss)
        middle = time.perf_counter()
        engine.step()
        end = time.perf_counter()
        return {"loss": loss.item(), "update": end - middle, "step": end - at_start}

    return step


def commands(arguments, dtype, directory):
    common = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(os.cpu_count()), "MASTER_ADDR": "127.0.0.1"}
    common |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "LOCAL_SIZE": "1"}
    by_arm = {}
    for number, arm in enumerate(ARMS):
        python = sys.executable if arm == "zeroshard" else arguments.peers_python
        swap = Path(directory) / f"{dtype}-{number}"
        swap.mkdir()
        command = [python, __file__, "--worker", arm, "--dtype", dtype, "--dir", str(swap)]
        command += ["--layers", str(arguments.layers), "--rows", str(arguments.rows)]
        by_arm[arm] = command, common | {"MASTER_PORT": str(29640 + number)}
    return by_arm


def measure(arguments, dtype, directory):
    """By arm, a list with the loss and the times of each round."""
    rounds = take_turns(commands(arguments, dtype, directory), WARM_UP + arguments.rounds)
    for number, steps in enumerate(rounds):
        losses = [each["loss"] for each in steps.values()]
        assert max(losses) - min(losses) <= 0.02 * max(losses), f"losses of round {number} differ: {losses}"
    return {arm: [steps[arm] for steps in rounds[WARM_UP:]] for arm in ARMS}


def table(dtype, measured):
    own = measured["zeroshard"]
    lines = [""]
    lines += [f"| {dtype} | update | step | update / zeroshard's (least, highest) | step / zeroshard's |"]
    lines += ["|---|---|---|---|---|"]
    for arm, steps in measured.items():
        middle = {what: statistics.median(step[what] for step in steps) for what in ("update", "step")}
        ratios = {
            what: sorted(step[what] / mine[what] for step, mine in zip(steps, own, strict=True))
            for what in ("update", "step")
        }
        update, step = ratios["update"], ratios["step"]
        lines.append(
            f"| {arm} | {middle['update']:.2f} s | {middle['step']:.2f} s | "
            f"{statistics.median(update):.2f} ({update[0]:.2f}, {update[-1]:.2f}) | "
            f"{statistics.median(step):.2f} ({step[0]:.2f}, {step[-1]:.2f}) |"
        )
    return lines


def main():
    arguments = parse_arguments()
    if arguments.worker:
        answer_steps(lambda: begin(arguments))
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir, prefix="zeroshard-bench-") as directory:
        measured = {dtype: measure(arguments, dtype, directory) for dtype in ("bf16", "fp32")}
    date = datetime.date.today().isoformat()
    out = arguments.out or ROOT / f"bench/results/offload_peers-{date}"
    command = f"bench/offload_peers.py --layers {arguments.layers} --rows {arguments.rows} --rounds {arguments.rounds}"
    machine = {"cpu": cpu_name(), "processors": os.cpu_count(), "kernel": platform.release(), "date": date}
    result = {"command": command, "machine": machine, "load": os.getloadavg(), "measured": measured}
    out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    parameters = arguments.layers * WIDTH * WIDTH / 1e6
    lines = [
        "# Optimizer states in swap files, beside DeepSpeed",
        "",
        f"`{command}`, {machine['cpu']}, {machine['processors']} processors, Linux {machine['kernel']}, {date}; "
        f"load at the end {os.getloadavg()[0]:.1f}. {parameters:.0f} M parameters, one rank on the CPU, stage 3.",
    ]
    for dtype, arms in measured.items():
        lines += table(dtype, arms)
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
