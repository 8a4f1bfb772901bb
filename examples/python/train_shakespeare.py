#!/usr/bin/env python3
"""Trains a Llama of 10 M parameters on Shakespeare's works with ZeRO stage 3, on two CPU ranks, in about three minutes.

    zeroshard run --nproc 2 examples/python/train_shakespeare.py
    zeroshard run --nproc 2 examples/python/train_shakespeare.py --compare-stages 10

The model is Hugging Face's LlamaForCausalLM, unchanged, with random weights. Log, plot and texts go to
runs/shakespeare/.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections import deque
from pathlib import Path

try:
    import torch
    import torch.distributed as dist
    import zeroshard
    from transformers import LlamaForCausalLM
except ImportError as error:
    sys.exit(
        f"train_shakespeare.py: {error}. It needs zeroshard, transformers, numpy and matplotlib; "
        "in a checkout: pip install --no-build-isolation . && pip install transformers numpy matplotlib"
    )

from shakespeare_data import DataError, Shakespeare
from training_log import TrainingLog, plot_losses

ROOT = Path(__file__).resolve().parents[2]
SEQUENCE = 128
PROMPTS = ("HAMLET.\n", "ROMEO.\nO,", "KING.\nMy lord")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=ROOT / "examples/configs/shakespeare_stage3.json")
    parser.add_argument("--data", type=Path, default=ROOT / ".data/shakespeare", help="cache of texts and tokens")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/shakespeare")
    parser.add_argument("--steps", type=int, help="optimizer steps (default: the scheduler's total_num_steps)")
    parser.add_argument("--stage", type=int, choices=[0, 1, 2, 3], help="instead of the config's stage")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare-stages", type=int, metavar="STEPS", help="only train STEPS steps at stages 0 to 3")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # some launchers pass it
    return parser.parse_args()


def load_config(path, steps=None, stage=None):
    config = json.loads(path.read_text())
    if steps is not None:
        schedule = config["scheduler"]["params"]
        schedule["total_num_steps"] = steps
        schedule["warmup_num_steps"] = min(schedule["warmup_num_steps"], max(steps // 4, 1))
    if stage is not None:
        config["zero_optimization"]["stage"] = stage
    return config


def build_model(data, seed):
    torch.manual_seed(seed)
    return LlamaForCausalLM(data.llama_config())


class Trainer:
    """One sharded training: the engine, its data and its place in the world."""

    def __init__(self, config, data, seed):
        self.config, self.data, self.seed = config, data, seed
        self.model = build_model(data, seed)
        self.params = sum(p.numel() for p in self.model.parameters())
        self.engine, *_ = zeroshard.initialize(
            model=self.model, config=config, model_parameters=self.model.parameters()
        )
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1

    def mean_over_ranks(self, value):
        if self.world_size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / self.world_size

    def step(self, index):
        """One optimizer step over all its micro-batches; returns the mean loss over ranks and micro-batches."""
        rows = self.config["train_batch_size"]
        mine = self.data.batch(self.seed, index, rows, SEQUENCE, self.rank, self.world_size)
        micro_batches = mine.split(self.config["train_micro_batch_size_per_gpu"])
        total = 0.0
        for micro_batch in micro_batches:
            loss = self.engine(input_ids=micro_batch, labels=micro_batch).loss
            self.engine.backward(loss)
            self.engine.step()
            total += loss.item()
        return self.mean_over_ranks(total / len(micro_batches))

    def memory_mb(self):
        report = self.engine.memory_report()
        return report["planned_total"] / 1e6, report["measured_total"] / 1e6

    def held_out_loss(self, blocks=8, rows=4):
        self.engine.eval()
        total = 0.0
        with torch.no_grad():
            for index in range(self.rank, blocks * self.world_size, self.world_size):
                batch = self.data.held_out_batch(index, rows, SEQUENCE)
                total += self.engine(input_ids=batch, labels=batch).loss.item()
        self.engine.train()
        return self.mean_over_ranks(total / blocks)

    def generate(self, prompt, new_tokens=60):
        """Samples a continuation; every rank calls it and gets the same text."""
        ids = torch.tensor([self.data.tokenizer.encode(prompt).ids])
        torch.manual_seed(self.seed)
        self.model.eval()
        with zeroshard.gathered(self.model.parameters()), torch.no_grad():
            output = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=True, top_p=0.9
            )
        self.model.train()
        return self.data.tokenizer.decode(output[0].tolist())


def train(args, data):
    config = load_config(args.config, args.steps, args.stage)
    steps = config["scheduler"]["params"]["total_num_steps"]
    trainer = Trainer(config, data, args.seed)
    main = trainer.rank == 0
    log = TrainingLog(args.out, steps) if main else None
    if main:
        print(
            f"{trainer.params / 1e6:.2f} M parameters, stage {config['zero_optimization']['stage']}, "
            f"{trainer.world_size} ranks, {config['train_batch_size'] * SEQUENCE} tokens a step, "
            f"{len(data.train) / 1e6:.2f} M training tokens",
            flush=True,
        )
    tokens = config["train_batch_size"] * SEQUENCE
    start = time.monotonic()
    recent = deque([start], maxlen=11)
    try:
        for index in range(steps):
            loss = trainer.step(index)
            recent.append(time.monotonic())
            if not main:
                continue
            seconds = (recent[-1] - recent[0]) / (len(recent) - 1)
            planned, measured = trainer.memory_mb()
            log.add(
                {
                    "step": index + 1,
                    "loss": loss,
                    "grad_norm": float(trainer.engine.get_global_grad_norm()),
                    "lr": trainer.engine.get_lr()[0],
                    "tokens_per_s": tokens / seconds,
                    "planned_mb": planned,
                    "measured_mb": measured,
                    "elapsed_s": recent[-1] - start,
                    "eta_s": seconds * (steps - index - 1),
                }
            )
    finally:
        if main:
            log.close()
    finish(args, trainer, log)


def finish(args, trainer, log):
    """Held-out loss, plot and a few generated lines. Every rank takes part, the first one writes."""
    held_out = trainer.held_out_loss()
    texts = [trainer.generate(prompt) for prompt in PROMPTS]
    if log is None:
        return
    stage = trainer.config["zero_optimization"]["stage"]
    title = f"Llama, {trainer.params / 1e6:.1f} M parameters, stage {stage}, {trainer.world_size} ranks"
    plot = plot_losses(log.records, held_out, title, args.out / "loss")
    log.note(f"held-out loss {held_out:.3f}; log {args.out / 'log.jsonl'}, plot {plot}")
    (args.out / "generated.txt").write_text("\n\n".join(texts) + "\n")
    for text in texts:
        print("---\n" + text)


def compare_stages(args, data):
    rows = []
    for stage in range(4):
        trainer = Trainer(load_config(args.config, stage=stage), data, args.seed)
        seconds = []
        for index in range(args.compare_stages):
            start = time.monotonic()
            loss = trainer.step(index)
            seconds.append(time.monotonic() - start)
        planned, measured = trainer.memory_mb()
        rows.append(
            {
                "stage": stage,
                "planned_mb": planned,
                "measured_mb": measured,
                "step_ms": sorted(seconds)[len(seconds) // 2] * 1e3,
                "loss": loss,
                "digest": trainer.engine.parameter_digest(),
            }
        )
        main = trainer.rank == 0
        del trainer
        gc.collect()
    same = len({row["digest"] for row in rows}) == 1
    if main:
        print("| stage | planned MB per rank | measured MB per rank | step ms | loss | SHA-256 of the parameters |")
        print("|---|---|---|---|---|---|")
        for row in rows:
            print(
                f"| {row['stage']} | {row['planned_mb']:.1f} | {row['measured_mb']:.1f} | {row['step_ms']:.0f} "
                f"| {row['loss']:.6f} | {row['digest'][:16]} |"
            )
        print("all stages: the same bits" if same else "THE STAGES DIFFER")
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "stages.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if same else 1


def main():
    args = parse_arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        data = Shakespeare(args.data)
        if args.compare_stages:
            return compare_stages(args, data)
        train(args, data)
    except DataError as error:
        sys.exit(f"train_shakespeare.py: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
