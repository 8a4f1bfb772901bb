#!/usr/bin/env python3
"""Times clip + AdamW + bf16 cast on CPU: zeroshard, torch, DeepSpeed and the memory traffic itself, interleaved.

    bench/setup_peers.sh                                         # once
    .venv-peers/bin/python bench/adam.py --build build/release   # writes bench/results/adam-DATE.{md,json}

All arms run in one process over the same flat arrays (fp32 weights, gradient and moments, bf16 weights), in turn, round
after round. The ceilings read 16 and write 14 bytes an element for the step and read 4 for the norm, one addition per
stream; "ceiling" has prefetches and streaming stores as well. Ratios are taken per round. A peer that cannot be loaded
is listed as not measured.
"""

import argparse
import ctypes
import datetime
import json
import os
import platform
import statistics
import time
from pathlib import Path

from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
MAX_NORM = 1.0
BYTES = {"step": 30, "all": 34}  # per element: without and with the norm's read


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build directory with bench_adam_shared")
    parser.add_argument("--sizes", default="1,16,64", help="millions (2^20) of elements")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="without suffix (default: bench/results/adam-DATE)")
    return parser.parse_args()


class Arrays(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("weights", "grad", "exp_avg", "exp_avg_sq", "param")]
    _fields_ += [("numel", ctypes.c_int64)]


def load_library(build):
    path = build / "bench" / "libbench_adam_shared.so"
    if not path.exists():
        raise SystemExit(f"{path} is missing: build the target bench_adam_shared, or name the build with --build")
    library = ctypes.CDLL(str(path))
    library.zs_bench_isa.restype = ctypes.c_char_p
    library.zs_bench_crew.restype = ctypes.c_void_p
    library.zs_bench_crew.argtypes = [ctypes.c_int]
    library.zs_bench_clip_and_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_int64]
    library.zs_bench_adam_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int64]
    for name in ("zs_bench_norm_probe", "zs_bench_step_probe", "zs_bench_tuned_step_probe"):
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.zs_bench_dismiss.argtypes = [ctypes.c_void_p]
    return library


class Model:
    """The arrays that all arms share; reset() makes them the same again."""

    def __init__(self, torch, numel):
        self.torch, self.numel = torch, numel
        self.param = torch.nn.Parameter(torch.empty(numel))
        self.param.grad = torch.empty(numel)
        self.exp_avg, self.exp_avg_sq = torch.empty(numel), torch.empty(numel)
        self.low = torch.empty(numel, dtype=torch.bfloat16)
        tensors = (self.param.data, self.param.grad, self.exp_avg, self.exp_avg_sq, self.low)
        self.arrays = Arrays(*(tensor.data_ptr() for tensor in tensors), numel)
        self.reset()

    def reset(self):
        self.param.data.fill_(0.5)
        self.param.grad.fill_(0.01)
        self.exp_avg.fill_(1e-3)
        self.exp_avg_sq.fill_(1e-4)

    def randomize(self, seed):
        generator = self.torch.Generator().manual_seed(seed)
        self.param.data.normal_(generator=generator)
        self.param.grad.normal_(generator=generator)
        self.exp_avg.zero_()
        self.exp_avg_sq.zero_()


def torch_arm(model, **flags):
    optimizer = model.torch.optim.AdamW([model.param], lr=1e-3, weight_decay=0.01, **flags)
    step = model.torch.tensor(0.0)
    optimizer.state[model.param] = {"step": step, "exp_avg": model.exp_avg, "exp_avg_sq": model.exp_avg_sq}

    def run(count):
        step.fill_(count - 1)
        model.torch.nn.utils.clip_grad_norm_([model.param], MAX_NORM)
        optimizer.step()
        model.low.copy_(model.param.data)

    return run


def deepspeed_arm(model):
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer = DeepSpeedCPUAdam([model.param], lr=1e-3, weight_decay=0.01, adamw_mode=True)
    state = optimizer.state[model.param]
    state.update(step=0, exp_avg=model.exp_avg, exp_avg_sq=model.exp_avg_sq)

    def run(count):
        state["step"] = count - 1
        model.torch.nn.utils.clip_grad_norm_([model.param], MAX_NORM)
        optimizer.step()
        model.low.copy_(model.param.data)

    return run


def make_arms(model, library, crew, missing):
    """Name to (kind, run): kind says which bytes an element moves at least, run takes the step counted from 1."""
    arrays = ctypes.byref(model.arrays)
    tuned = library.zs_bench_has_tuned_probe()
    probe = library.zs_bench_tuned_step_probe if tuned else library.zs_bench_step_probe

    def whole_probe(step_probe):
        library.zs_bench_norm_probe(crew, arrays)
        step_probe(crew, arrays)

    arms = {
        "ceiling": ("all", lambda _: whole_probe(probe)),
        "ceiling, plain loop": ("all", lambda _: whole_probe(library.zs_bench_step_probe)),
        "zeroshard": ("all", lambda count: library.zs_bench_clip_and_step(crew, arrays, MAX_NORM, count)),
        "ceiling, step only": ("step", lambda _: probe(crew, arrays)),
        "zeroshard, step only": ("step", lambda count: library.zs_bench_adam_step(crew, arrays, 1.0, count)),
        "torch fused": ("all", torch_arm(model, fused=True)),
        "torch foreach": ("all", torch_arm(model, foreach=True)),
        "torch for-loop": ("all", torch_arm(model, foreach=False)),
    }
    try:
        arms["DeepSpeed CPU Adam"] = ("all", deepspeed_arm(model))
    except Exception as error:  # not installed, or its extension does not compile here
        missing["DeepSpeed CPU Adam"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return arms


def check_parity(model, arms):
    """Five steps of every arm from one start; returns the largest difference of the weights from torch's fused."""

    def weights_of(run):
        model.randomize(seed=7)
        for count in range(1, 6):
            run(count)
        return model.param.data.clone(), model.low.clone()

    want, want_low = weights_of(arms["torch fused"][1])
    differences = {}
    for name, (kind, run) in arms.items():
        if kind != "all" or name.startswith("ceiling"):
            continue
        got, low = weights_of(run)
        differences[name] = (got - want).abs().max().item()
        if differences[name] > 1e-5 or (low - want_low).abs().max().item() > 0.04:
            raise SystemExit(f"{name} does not compute the same step: weights differ by {differences[name]:.2e}")
    return differences


def time_arms(model, arms, rounds):
    wall = {name: [] for name in arms}
    cpu = {name: [] for name in arms}
    for round_index in range(rounds + 1):  # the first warms up
        for name, (_, run) in arms.items():
            model.reset()  # untimed: the ceilings leave no usable moments
            start, start_cpu = time.perf_counter(), time.process_time()
            run(round_index + 1)
            seconds, seconds_cpu = time.perf_counter() - start, time.process_time() - start_cpu
            if round_index > 0:
                wall[name].append(seconds)
                cpu[name].append(seconds_cpu)
    return wall, cpu


def summarize(arms, wall, cpu, numel, threads):
    rows = []
    for name, (kind, _) in arms.items():
        ceiling = "ceiling" if kind == "all" else "ceiling, step only"
        per_round = [c / t for c, t in zip(wall[ceiling], wall[name], strict=True)]
        quartiles = statistics.quantiles(wall[name], n=4) if len(wall[name]) > 1 else [wall[name][0]] * 3
        rows.append(
            {
                "arm": name,
                "numel": numel,
                "threads": threads,
                "median_ns": statistics.median(wall[name]) / numel * 1e9,
                "min_ns": min(wall[name]) / numel * 1e9,
                "iqr_ns": (quartiles[2] - quartiles[0]) / numel * 1e9,
                "cpu_min_ns": min(cpu[name]) / numel * 1e9,
                "gb_per_s": BYTES[kind] * numel / statistics.median(wall[name]) * 1e-9,
                "of_ceiling": statistics.median(per_round),
                "of_ceiling_cpu": min(cpu[ceiling]) / min(cpu[name]),
                "wall_s": wall[name],
                "cpu_s": cpu[name],
            }
        )
    return rows


def machine():
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()}


def write_report(out, report):
    out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    info = report["machine"]
    load = " / ".join(f"{value:.1f}" for value in info["load"]), " / ".join(f"{v:.1f}" for v in report["load_after"])
    lines = [
        f"# Clip + AdamW + bf16 cast on CPU, {report['date']}",
        "",
        f"`{report['command']}`; {report['rounds']} interleaved rounds; {info['cpu']}, {info['cores']} cores, load "
        f"{load[0]} before and {load[1]} after; torch {report['torch']}; instruction set {report['isa']}.",
        "",
        "Nanoseconds per element of wall time; `CPU` is the least process CPU time per element, which other programs "
        "on the machine disturb less; `of ceiling` is the ceiling's time over the arm's, median of the rounds, and the "
        "same of the least CPU times. GB/s counts the bytes that must move (34, step only 30), not those that did.",
        "",
        "| M elements | threads | arm | median | min | IQR | CPU | GB/s | of ceiling | of ceiling, CPU |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        lines.append(
            f"| {row['numel'] >> 20} | {row['threads']} | {row['arm']} | {row['median_ns']:.2f} | {row['min_ns']:.2f} "
            f"| {row['iqr_ns']:.2f} | {row['cpu_min_ns']:.2f} | {row['gb_per_s']:.1f} | {row['of_ceiling']:.0%} "
            f"| {row['of_ceiling_cpu']:.0%} |"
        )
    lines += [f"| all | all | {name} | not measured: {reason} |" for name, reason in report["missing"].items()]
    lines += ["", "Largest difference of a weight from torch's fused AdamW after five steps on 2^20 normal values: "]
    lines[-1] += ", ".join(f"{name} {value:.1e}" for name, value in report["parity"].items()) + "."
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


def main():
    options = parse_arguments()
    threads_list = [int(text) for text in options.threads.split(",")]
    import torch

    library = load_library(options.build)
    date = datetime.date.today().isoformat()
    out = options.out or ROOT / "bench" / "results" / f"adam-{date}"
    report = {"date": date, "rounds": options.rounds, "torch": torch.__version__, "machine": machine()}
    report["isa"] = library.zs_bench_isa().decode()
    report["command"] = f"bench/adam.py --sizes {options.sizes} --threads {options.threads} --rounds {options.rounds}"
    report["missing"], report["rows"] = {}, []
    for size in [int(text) << 20 for text in options.sizes.split(",")]:
        model = Model(torch, size)
        for threads in threads_list:
            torch.set_num_threads(threads)
            crew = library.zs_bench_crew(threads)
            arms = make_arms(model, library, crew, report["missing"])
            if "parity" not in report:
                small = Model(torch, 1 << 20)
                report["parity"] = check_parity(small, make_arms(small, library, crew, {}))
                del small
            wall, cpu = time_arms(model, arms, options.rounds)
            report["rows"] += summarize(arms, wall, cpu, size, threads)
            library.zs_bench_dismiss(crew)
            for row in report["rows"][-len(arms) :]:
                print(
                    f"{size >> 20:4d} M  {threads} threads  {row['arm']:22s} median {row['median_ns']:7.2f} ns"
                    f"  cpu {row['cpu_min_ns']:7.2f} ns  of ceiling {row['of_ceiling']:.0%}",
                    flush=True,
                )
        del model, arms
    report["load_after"] = os.getloadavg()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_report(out, report)
    print(f"wrote {out}.md and .json")


if __name__ == "__main__":
    main()
