"""Runs of `zeroshard train` on a small model, and the same steps in plain torch."""

import json
import math
import os
import subprocess
from pathlib import Path

import numpy
import pytest
import torch
import transformers
from built import ZEROSHARD
from tokenizer_data import learnable_tokens

LENGTH, BATCH, STEPS = 32, 12, 12
OPTIMIZER = {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS = {
    "llama": (transformers.LlamaConfig, {"num_key_value_heads": 2}),
    "gpt2": (transformers.GPT2Config, {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64} | NO_DROPOUT),
    "mistral": (transformers.MistralConfig, {"num_key_value_heads": 2, "sliding_window": 7}),
    "qwen2": (
        transformers.Qwen2Config,
        {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": (transformers.Qwen3Config, {"num_key_value_heads": 2, "head_dim": 20, "tie_word_embeddings": True}),
    "gemma2": (
        transformers.Gemma2Config,
        {"num_key_value_heads": 2, "head_dim": 14, "sliding_window": 6, "query_pre_attn_scalar": 30},
    ),
    "mixtral": (
        transformers.MixtralConfig,
        {"num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}
SMALL = {
    "vocab_size": 89,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def tokens():
    return learnable_tokens(LENGTH * BATCH * STEPS + 500)


def make(folder, tokens, kind="llama", **train):
    """A model directory, a file of tokens, and the configuration that trains the one on the other."""
    torch.manual_seed(0)
    config_class, fields = MODELS[kind]
    config = config_class(**(SMALL if kind != "gpt2" else {"vocab_size": 89}), **fields)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder / "model")
    numpy.save(folder / "train.npy", tokens[: LENGTH * BATCH * STEPS + 1])
    numpy.save(folder / "validation.npy", tokens[LENGTH * BATCH * STEPS + 1 :])
    data = {"train": [str(folder / "train.npy")], "validation": [str(folder / "validation.npy")]}
    train = {
        "model": str(folder / "model"),
        "output": str(folder / "trained"),
        "steps": STEPS,
        "data": data | {"length": LENGTH, "shuffle": False},
    } | train
    return model, train


def write(folder, train, stage=0, **more):
    config = {
        "train_batch_size": BATCH,
        "optimizer": {"type": "AdamW", "params": OPTIMIZER},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "train": train,
    } | more
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder / "config.json")


def command(config, ranks=1):
    return [ZEROSHARD, "train", config, "--nproc", str(ranks)]


def run(config, ranks=1):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command(config, ranks), capture_output=True, text=True, timeout=120, env=environment)


def metrics(folder):
    """{step: {name: value}} of metrics.jsonl."""
    steps = {}
    for line in (folder / "trained" / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        steps.setdefault(record["step"], {}).update(record)
    return steps


def plain_losses(model, tokens):
    """What PyTorch's own loop gives."""
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    losses = []
    model.train()
    for step in range(STEPS):
        begin = step * BATCH * LENGTH
        ids = torch.tensor(tokens[begin : begin + BATCH * LENGTH].astype("int64")).view(BATCH, LENGTH)
        following = tokens[begin + 1 : begin + BATCH * LENGTH + 1].astype("int64")
        targets = torch.tensor(following).view(BATCH, LENGTH)
        loss = torch.nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def perplexity(model, tokens):
    model.eval()
    total, count = 0.0, 0
    for begin in range(0, len(tokens) - 1, LENGTH):
        ids = torch.tensor(tokens[begin : begin + LENGTH + 1].astype("int64"))
        logits = model(ids[None, :LENGTH][:, : len(ids) - 1] if len(ids) <= LENGTH else ids[None, :LENGTH]).logits
        targets = ids[1:]
        total += torch.nn.functional.cross_entropy(logits[0], targets, reduction="sum").item()
        count += len(targets)
    return math.exp(total / count)


def process_of_rank(rank, config, but=()):
    """The pid of the rank that runs `config`, other than those of earlier starts; None before it is there."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, names = ((path / file).read_bytes().split(b"\0") for file in ("cmdline", "environ"))
            runs_it = words[0].endswith(b"/zeroshard-torch") and config.encode() in words
            if runs_it and f"RANK={rank}".encode() in names and int(path.name) not in but:
                return int(path.name)
        except OSError:
            pass  # it has ended
    return None
