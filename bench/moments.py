#!/usr/bin/env python3
"""Times AdamW on CPU with moments in fp32 and as 8-bit codes: zeroshard's kernels and bitsandbytes, interleaved.

    .venv/bin/python bench/moments.py --build build/release --files DIRECTORY  # writes bench/results/moments-DATE.md

All arms run in one process, in turn, round after round: zeroshard's over the same fp32 weights and gradient, of which
it writes bf16 weights as well; bitsandbytes over fp32 weights of its own. Ratios are taken per round. With --files,
bench/offload.py trains with states in files of that directory, in a process for each arm, in turn.
"""

import argparse
import ctypes
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from adam import ROOT, Model, load_library
from machine import cpu_name


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build directory with bench_adam_shared")
    parser.add_argument("--sizes", default="1,4,16", help="millions (2^20) of elements")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--files", type=Path, help="also times updates with states in files of this directory")
    parser.add_argument("--layers", type=int, default=6, help="of 2048 x 2048 weights, with states in files")
    parser.add_argument("--out", type=Path, help="without suffix (default: bench/results/moments-DATE)")
    return parser.parse_args()


def coded_arm(model, library, crew):
    torch = model.torch
    codes = [torch.full((model.numel,), 127, dtype=torch.uint8), torch.zeros(model.numel, dtype=torch.uint8)]
    scales = [torch.zeros(model.numel // 256) for _ in codes]
    addresses = [ctypes.c_void_p(each.data_ptr()) for each in (*codes, *scales)]
    kept = (codes, scales)  # as long as the arm

    def run(count):
        assert kept
        library.zs_bench_coded_adam_step(crew, ctypes.byref(model.arrays), *addresses, ctypes.c_int64(count))

    return run


def bitsandbytes_arm(model):
    import bitsandbytes

    torch = model.torch
    param = torch.nn.Parameter(torch.full((model.numel,), 0.5))
    param.grad = model.param.grad
    optimizer = bitsandbytes.optim.AdamW8bit([param], lr=1e-3, weight_decay=0.01)
    return lambda _: optimizer.step()


def measure(torch, library, numel, threads, rounds):
    """Name to the seconds of each round, of processor time: others may use the machine meanwhile."""
    torch.set_num_threads(threads)
    crew = library.zs_bench_crew(threads)
    model = Model(torch, numel)
    model.randomize(seed=1)
    arrays = ctypes.byref(model.arrays)
    arms = {
        "zeroshard, fp32": lambda count: library.zs_bench_adam_step(crew, arrays, 1.0, count),
        "zeroshard, int8": coded_arm(model, library, crew),
    }
    try:
        arms["bitsandbytes AdamW8bit"] = bitsandbytes_arm(model)
    except ImportError as error:
        print(f"bitsandbytes is not measured: {error}")
    seconds = {name: [] for name in arms}
    for count in range(1, rounds + 2):  # the first is a warm-up
        for name, run in arms.items():
            begin = time.process_time()
            run(count)
            if count > 1:
                seconds[name].append(time.process_time() - begin)
    library.zs_bench_dismiss(crew)
    return seconds


def rows_of(numel, threads, seconds):
    own = seconds["zeroshard, int8"]
    for name, times in seconds.items():
        ratio = statistics.median(theirs / ours for theirs, ours in zip(times, own, strict=True))
        nanoseconds = statistics.median(times) / numel * 1e9
        yield f"| {numel >> 20} M | {threads} | {name} | {nanoseconds:.2f} | {ratio:.2f} |"


def update_in_files(options, dtype, moments):
    """Seconds of an update, the median of a run of bench/offload.py."""
    command = [sys.executable, str(Path(__file__).with_name("offload.py")), "--train", "nvme", "--dtype", dtype]
    command += ["--moments", moments, "--dir", str(options.files), "--layers", str(options.layers), "--rows", "16"]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(output.splitlines()[-1])["update_s"]


def rows_of_files(options):
    for dtype in ("bf16", "fp32"):
        rounds = [[update_in_files(options, dtype, moments) for moments in ("fp32", "int8")] for _ in range(3)]
        wide, narrow = (statistics.median(times) for times in zip(*rounds, strict=True))
        ratio = statistics.median(narrow / wide for wide, narrow in rounds)
        yield f"| {dtype} | {wide * 1e3:.0f} ms | {narrow * 1e3:.0f} ms | {ratio:.2f} |"


def main():
    options = parse_arguments()
    import torch

    library = load_library(options.build)
    library.zs_bench_coded_adam_step.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64]
    date = datetime.date.today().isoformat()
    lines = [
        f"# AdamW with 8-bit moments on CPU, {date}",
        "",
        f"`bench/moments.py --sizes {options.sizes} --threads {options.threads} --rounds {options.rounds}`; "
        f"{options.rounds} interleaved rounds; {cpu_name()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f} before; torch {torch.__version__}; instruction set "
        f"{library.zs_bench_isa().decode()}.",
        "",
        "Medians of processor time, of all threads together. The last column is the arm's time divided by that of "
        "`zeroshard, int8`, round by round.",
        "",
        "| elements | threads | arm | ns an element | times int8's time |",
        "|---|---|---|---|---|",
    ]
    for size in options.sizes.split(","):
        for threads in options.threads.split(","):
            numel = int(size) << 20
            lines += rows_of(numel, int(threads), measure(torch, library, numel, int(threads), options.rounds))
    if options.files:
        numel = options.layers * 2048 * 2048 / 1e6
        lines += [
            "",
            f"An update of {numel:.0f} M parameters with states in files, by the dtype of training: medians of 3 runs "
            "each, in turn.",
            "",
            "| training | fp32 moments | int8 moments | ratio |",
            "|---|---|---|---|",
            *rows_of_files(options),
        ]
    lines.append(f"\nLoad after: {os.getloadavg()[0]:.1f}.")
    out = options.out or ROOT / "bench" / "results" / f"moments-{date}"
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
