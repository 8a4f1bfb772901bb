#!/usr/bin/env python3
"""Prints the parameter digest of every run of a matrix, so that two builds can be compared with `diff`.

    PYTHONPATH=.../python digest_matrix.py > lines          one line per run
    PYTHONPATH=.../python digest_matrix.py --save DIR       trains, saves, loads and goes on
    PYTHONPATH=.../python digest_matrix.py --load DIR       loads what --save wrote, by any build: the same lines
    PYTHONPATH=.../python digest_matrix.py --forwards       gradients of equal steps of several forwards each

It imports nothing of the tests, and takes the build that PYTHONPATH names. Ranks are processes on CPU, and those of one
world do all its runs: about 3 minutes on 2 cores. Exits 1 when a digest depends on the stage or differs between ranks,
and when two equal steps have different gradients.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import multiprocessing
import os
import queue
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STEPS = 6
STAGES, RANKS, DTYPES = [0, 1, 2, 3], [1, 2, 3, 4], ["fp32", "bf16", "fp16"]
ACCUMULATIONS, CLIPS = [1, 3], [0.0, 0.05]
MODELS = ["frozen", "tied", "groups"]
VOCABULARY, WIDTH = 29, 18  # no number of ranks divides the units


@dataclass(frozen=True)
class Run:
    model: str
    dtype: str
    accumulation: int
    clip: float
    stage: int

    def __str__(self) -> str:
        return f"{self.key} stage={self.stage}"

    @property
    def key(self) -> str:
        """What the digest may depend on."""
        return f"model={self.model} dtype={self.dtype} accumulation={self.accumulation} clip={self.clip:g}"

    def result(self, save_to: str | None, load_from: str | None) -> str:
        folder = Path(save_to or load_from or "") / f"{self.model}-{self.dtype}-{self.stage}"
        if save_to:
            save(self, folder)
        return loaded(self, folder) if save_to or load_from else trained(self)


@dataclass(frozen=True)
class Forwards:
    """Equal steps with a learning rate of 0, in each of which a backward follows several forwards."""

    model: str
    forwards: int
    stage: int
    overlap: bool
    checkpointed: bool

    def __str__(self) -> str:
        return f"{self.key} stage={self.stage} overlap={self.overlap} checkpointed={self.checkpointed}"

    @property
    def key(self) -> str:
        return f"model={self.model} forwards={self.forwards}"

    def result(self, save_to: None, load_from: None) -> str:
        return ", ".join(sorted(gradients(self)))


def configuration(run: Run) -> dict:
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": run.accumulation,
        "gradient_clipping": run.clip,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_max_lr": 1e-2}},
        "zero_optimization": {"stage": run.stage, "stage3_param_persistence_threshold": 100},
        "zeroshard": {"unit_classes": ["Block"], "timeout_s": 60},
    }
    if run.dtype != "fp32":
        config[run.dtype] = {"enabled": True}
    if run.dtype == "fp16":
        config["fp16"]["initial_scale_power"] = 8  # no step is skipped
    return config


def make_model(kind: str, checkpointed: bool = False, width: int = WIDTH):
    """Residual blocks between an embedding and a head; "all" is frozen in part, tied and has several groups."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 41), nn.Linear(41, width)

        def forward(self, x):
            return x + self.down(torch.tanh(self.up(self.norm(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, width)
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(width, VOCABULARY)

        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
            return self.head(x)

    torch.manual_seed(1)
    model = Model()
    if kind in ("frozen", "all"):
        for param in (*model.blocks[1].parameters(), model.blocks[0].up.weight, model.blocks[2].norm.bias):
            param.requires_grad_(False)
    if kind in ("tied", "all"):
        model.head.weight = model.embed.weight
    return model


def parameter_groups(model) -> list[dict]:
    trained = [param for param in model.parameters() if param.requires_grad]
    matrices, vectors = ([param for param in trained if (param.dim() == 1) == is_vector] for is_vector in (False, True))
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0, "lr": 3e-3}]


def make_engine(run: Run):
    import zeroshard

    model = make_model(run.model)
    groups = parameter_groups(model) if run.model in ("groups", "all") else None
    return zeroshard.initialize(model=model, model_parameters=groups, config=configuration(run))[0]


def train(engine, steps: range, accumulation: int) -> None:
    """The data depend on step, micro-batch and rank alone."""
    import torch

    for step, micro in itertools.product(steps, range(accumulation)):
        generator = torch.Generator().manual_seed(1000 * step + 10 * micro + engine.rank())
        ids = torch.randint(0, VOCABULARY, (2, 7), generator=generator).to(engine.device)
        logits = engine(ids)[:, :-1].float()
        engine.backward(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
        engine.step()


def trained(run: Run) -> str:
    """The digest after training from the start."""
    engine = make_engine(run)
    train(engine, range(STEPS), run.accumulation)
    digest = f"skipped={engine.skipped_steps} {engine.parameter_digest()}"
    engine.destroy()
    return digest


def loaded(run: Run, folder: Path) -> str:
    """The digest after loading, and that after going on."""
    engine = make_engine(run)
    path, _ = engine.load_checkpoint(folder)
    assert path is not None, f"no checkpoint in {folder}"
    digest = engine.parameter_digest()
    train(engine, range(STEPS, 2 * STEPS), run.accumulation)
    digest = f"loaded {digest} went on {engine.parameter_digest()}"
    engine.destroy()
    return digest


def gradients(run: Forwards) -> set[str]:
    """The distinct gradients of 50 steps."""
    import torch
    import zeroshard

    model = make_model(run.model, run.checkpointed)
    config = configuration(Run(run.model, "fp32", 1, 0.0, run.stage))
    config |= {"optimizer": {"type": "SGD", "params": {"lr": 0.0}}, "scheduler": {}}
    config["zero_optimization"] |= {"overlap_comm": run.overlap, "stage3_param_persistence_threshold": 0}
    engine = zeroshard.initialize(model=model, config=config)[0]
    seen = set()
    for _ in range(50):
        losses = []
        for forward in range(run.forwards):
            generator = torch.Generator().manual_seed(10 * forward + engine.rank())
            ids = torch.randint(0, VOCABULARY, (2, 7), generator=generator)
            logits = engine(ids)[:, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
        engine.backward(sum(losses))
        digest = hashlib.sha256()
        for param in (param for param in model.parameters() if param.requires_grad):
            digest.update(zeroshard.get_gradient(param).numpy().tobytes())
        seen.add(digest.hexdigest()[:16])
        engine.step()
    engine.destroy()
    return seen


def save(run: Run, folder: Path) -> None:
    engine = make_engine(run)
    train(engine, range(STEPS), run.accumulation)
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    engine.destroy()


def rank_main(rank: int, port: int, ranks: int, job: tuple, results: multiprocessing.Queue) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch

    torch.set_num_threads(1)
    runs, save_to, load_from = job
    for index, run in enumerate(runs):
        results.put((index, rank, run.result(save_to, load_from)))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def next_of(results: multiprocessing.Queue, world: list) -> tuple[int, int, str]:
    while True:
        with contextlib.suppress(queue.Empty):
            return results.get(timeout=1)
        if any(process.exitcode for process in world):
            raise RuntimeError("a rank failed; its error is above")


def digests_of(ranks: int, job: tuple) -> Iterator[tuple[Run | Forwards, list[str]]]:
    """Each run, and what every rank found."""
    context = multiprocessing.get_context("spawn")
    results, port = context.Queue(), free_port()
    world = [context.Process(target=rank_main, args=(rank, port, ranks, job, results)) for rank in range(ranks)]
    for process in world:
        process.start()
    try:
        found: dict[int, dict[int, str]] = {}
        for index, run in enumerate(job[0]):
            while len(found.get(index, {})) < ranks:
                at, rank, digest = next_of(results, world)
                found.setdefault(at, {})[rank] = digest
            yield run, [found[index][rank] for rank in range(ranks)]
    finally:
        for process in world:
            process.join(timeout=20)
            process.kill()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", help="1 to 4; 2 with --save and --load")
    parser.add_argument("--stages", type=int, nargs="+", default=STAGES)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--save", metavar="DIR", help="a checkpoint per stage and dtype")
    where.add_argument("--load", metavar="DIR", help="those of --save")
    where.add_argument("--forwards", action="store_true", help="2 and 3 forwards before each backward; 2 to 4 ranks")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    os.environ["OMP_NUM_THREADS"] = "1"
    files = arguments.save or arguments.load
    models, accumulations, clips = (["all"], [1], CLIPS[1:]) if files else (arguments.models, ACCUMULATIONS, CLIPS)
    axes = [models, arguments.dtypes, accumulations, clips, arguments.stages]
    runs = [Run(*values) for values in itertools.product(*axes)]
    if arguments.forwards:
        axes = [["frozen", "all"], [2, 3], arguments.stages, [True, False], [False, True]]
        runs = [Forwards(*values) for values in itertools.product(*axes)]
    wrong = 0
    for ranks in arguments.ranks or ([2] if files else RANKS[1:] if arguments.forwards else RANKS):
        by_run: dict[str, set[str]] = {}
        for run, digests in digests_of(ranks, (runs, arguments.save, arguments.load)):
            print(f"ranks={ranks} {run} {digests[0]}", flush=True)
            same = by_run.setdefault(run.key, set())
            same.update(one for digest in digests for one in digest.split(", "))
            if len(same) > 1:
                wrong += 1
                print(f"ranks={ranks} {run}: not the digest of another rank, stage or step", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
