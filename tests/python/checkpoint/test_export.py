"""`zeroshard checkpoint export`: what transformers makes of the files computes as the live model does."""

import os
import subprocess

import models
import pytest
import torch
import world
import zeroshard
from built import ZEROSHARD, needs

pytestmark = needs(ZEROSHARD)
MODELS = {"llama": models.tiny_llama, "gpt2": models.tiny_gpt2}  # GPT-2's head is tied to its embedding
NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def ids_to_compare():
    return models.tokens(999, 0, 3, length=11)


def train_and_save(folder, family, stage, dtype):
    """Three steps; then the checkpoint, and the logits of the model that is still in memory."""
    from safetensors.torch import save_file

    model = MODELS[family]()
    config = models.configuration(stage, dtype, threshold=30, optimizer=models.adamw())
    engine, *_ = zeroshard.initialize(model=model, config=config)
    before = logits_of(engine)
    for step in range(3):
        ids = models.share(models.tokens(step, 0, 2 * world.size()), world.rank(), world.size())
        engine.backward(models.language_loss(engine, ids))
        engine.step()
    engine.save_checkpoint(os.path.join(folder, "run"))
    engine.wait_for_checkpoint()
    logits = logits_of(engine)
    assert not torch.equal(logits, before)
    if world.rank() == 0:
        model.config.save_pretrained(os.path.join(folder, "exported"))
        save_file({"logits": logits}, os.path.join(folder, "live.safetensors"))
    return model.config._attn_implementation


def logits_of(model):
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=ids_to_compare()).logits.clone()
    model.train()
    return logits


def compare(folder, dtype, attention):
    """Without zeroshard: transformers reads the files that were exported."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    path = os.path.join(folder, "exported")
    model, told = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, NAMES[dtype]), output_loading_info=True, attn_implementation=attention
    )
    missing = [name for keys in told.values() for name in keys]
    live, found = load_file(os.path.join(folder, "live.safetensors"))["logits"], logits_of(model)
    return [missing, str(found.dtype), torch.equal(found, live), (found.float() - live.float()).abs().max().item()]


@pytest.mark.row("W3")
@pytest.mark.parametrize("dtype", list(NAMES))
@pytest.mark.parametrize("family", list(MODELS))
def test_the_exported_model_computes_as_the_live_one(tmp_path, release, family, dtype):
    first = list(NAMES).index(dtype) + 2 * list(MODELS).index(family)
    for stage in range(4) if release else [(first + 1) % 4]:
        folder = tmp_path / str(stage)
        folder.mkdir()
        (attention, *_) = world.run(3, train_and_save, folder=str(folder), family=family, stage=stage, dtype=dtype)
        command = [ZEROSHARD, "checkpoint", "export", folder / "run", folder / "exported"]
        command += ["--dtype", dtype] if dtype != "fp32" else []
        if stage % 2:  # several files and an index
            command += ["--max-file-size", "20KB"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert (len(done.stdout.splitlines()) > 2) == bool(stage % 2), done.stdout
        missing, kind, same, far = world.run(1, compare, folder=str(folder), dtype=dtype, attention=attention)[0]
        assert (missing, kind) == ([], f"torch.{NAMES[dtype]}")
        assert same, (stage, far)
