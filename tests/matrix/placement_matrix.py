#!/usr/bin/env python3
"""Prints what the engine makes of every placement that a configuration can ask for: the measure of changes to offload.

    PYTHONPATH=.../python placement_matrix.py > lines              ranks on the CPU
    PYTHONPATH=.../python placement_matrix.py --on lazy > lines    ranks on the simulated device of ZEROSHARD_BUILD_DIR
    PYTHONPATH=.../python placement_matrix.py --on cuda > lines    ranks that share a GPU
    ... --plans                                                    without digests: the same lines on every machine

A placement is a stage and values of the keys that move states, gradients and parameters. Its line has the planned bytes
of each tier and the digest after training, or the key by which the engine refuses it. Two builds are compared with
`diff`; placements_on_cpu.txt and placements_on_device.txt have the lines of --plans as they shall be. Exits 1 when a
digest depends on the placement or differs between ranks, or when a tier holds more than planned.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from digest_matrix import Run, configuration, digests_of, make_model, parameter_groups, train

STEPS, RANKS = 3, 3
WIDTH = 48  # each of three ranks owns a part of every block
ACCUMULATIONS = {"fp32": 1, "bf16": 1, "fp16": 3}  # micro-batches of a step
OFFLOADS = ["none", "cpu", "nvme"]
FOLDER = "PLACEMENT_MATRIX_FOLDER"  # a variable: where the files of all ranks lie


@dataclass(frozen=True)
class Placement:
    dtype: str
    stage: int
    states: str
    ratio: float
    parameters: str
    gradients: str
    moments: str
    delayed: bool
    on: str = ""

    def __str__(self) -> str:
        return (
            f"{self.dtype} stage={self.stage} states={self.states} ratio={self.ratio:g} parameters={self.parameters}"
            f" gradients={self.gradients} moments={self.moments} delayed={self.delayed}"
        )

    @property
    def key(self) -> str:
        """What the digest may depend on. A delayed update reaches the parameters a step later."""
        return f"{self.dtype} moments={self.moments} delayed={self.delayed}"

    def result(self, save_to: None, load_from: None) -> str:
        import zeroshard

        try:
            return placed(self)
        except zeroshard.ConfigError as error:
            return f"refused: {str(error).partition(': ')[0]}"


def placements(on: str, stages: list[int], dtypes: list[str]) -> Iterator[Placement]:
    """All that differ: below stage 3 no parameters are moved, and at stage 0 no states."""
    for dtype, stage in itertools.product(dtypes, stages):
        states = [("none", 1.0)] + [(device, ratio) for device in OFFLOADS[1:] for ratio in (1.0, 0.5)]
        parameters = OFFLOADS if stage == 3 else OFFLOADS[:1]
        others = [parameters, ["auto", "device", "cpu", "nvme"], ["fp32", "bf16"], [False, True]]
        for (device, ratio), *rest in itertools.product(states if stage else states[:1], *others):
            yield Placement(dtype, stage, device, ratio, *rest, on)


def configuration_of(run: Placement) -> dict:
    config = configuration(Run("all", run.dtype, ACCUMULATIONS[run.dtype], 0.05, run.stage))
    path = {"nvme_path": os.environ[FOLDER]}
    config["zero_optimization"] |= {
        "offload_optimizer": {"device": run.states, "ratio": run.ratio} | (path if run.states == "nvme" else {}),
        "offload_param": {"device": run.parameters} | (path | {"max_in_cpu": 0} if run.parameters == "nvme" else {}),
    }
    config["zeroshard"]["offload"] = {
        "gradients": run.gradients,
        "moment_dtype": run.moments,
        "delayed_update": run.delayed,
    }
    return config


def placed(run: Placement) -> str:
    """On a rank: what it plans, and the digest after training."""
    with on_device(run.on) as device:
        import zeroshard

        model = make_model("all", width=WIDTH).to(device)
        groups = parameter_groups(model)
        engine = zeroshard.initialize(model=model, model_parameters=groups, config=configuration_of(run))[0]
        train(engine, range(STEPS), ACCUMULATIONS[run.dtype])
        tiers = engine.memory_report()["tiers"]
        digest = f"norm={engine.get_global_grad_norm()!r} {engine.parameter_digest()}"
        assert engine.skipped_steps == 0
        engine.destroy()
    over = {tier: held for tier, held in tiers.items() if held["measured_peak"] > held["planned"]}
    planned = " ".join(f"{tier}={held['planned']}" for tier, held in sorted(tiers.items()))
    return f"{planned} {f'holds more than planned: {over} ' if over else ''}| {digest}"


def on_device(on: str):
    """The rank's device. Several ranks share a GPU, and meet over Gloo."""
    import torch

    if on == "cuda":
        torch.cuda.set_device(0)
        if os.environ["WORLD_SIZE"] != "1" and not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        return contextlib.nullcontext(torch.device("cuda", 0))
    if not on:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else zeroshard would take the GPU
        return contextlib.nullcontext(torch.device("cpu"))
    import simulated

    return simulated.device(simulated.Schedule[on.upper()])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--on",
        choices=["eager", "late", "lazy", "cuda"],
        default="",
        help="a schedule of the simulated device, or a GPU",
    )
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--dtypes", nargs="+", choices=list(ACCUMULATIONS), default=list(ACCUMULATIONS))
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one of N placements")
    parser.add_argument("--plans", action="store_true", help="no digests in the lines; they are compared anyway")
    return parser.parse_args()


def print_lines(runs: list[Placement], ranks: int, plans_alone: bool) -> int:
    """Returns how many of them are wrong."""
    wrong, by_key = 0, {}
    for run, results in digests_of(ranks, (runs, None, None)):
        plan, legal, digest = results[0].partition(" | ")
        print(f"{run}: {plan if plans_alone or not legal else results[0]}", flush=True)
        first = by_key.setdefault(run.key, digest) if legal else ""
        if "more than planned" in plan or any(result.partition(" | ")[1:] != (legal, first) for result in results):
            wrong += 1
            print(
                f"{run}: not the digest of another rank or placement, or more than planned: {results}", file=sys.stderr
            )
    return wrong


def main() -> int:
    arguments = parse_arguments()
    os.environ["OMP_NUM_THREADS"] = "1"
    tests = str(Path(__file__).resolve().parents[1] / "python")  # the simulated device's Python part, in ranks, too
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), tests]))
    sys.path.append(tests)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        runs = list(placements(arguments.on, arguments.stages, arguments.dtypes))[:: arguments.every]
        return 1 if print_lines(runs, arguments.ranks, arguments.plans) else 0


if __name__ == "__main__":
    sys.exit(main())
