"""What `zeroshard plan --sequence-parallel` tells is what autograd keeps on a rank; half of one rank's with two."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
import transformers
import world
import zeroshard
from built import ZEROSHARD, needs
from test_activations import forward_and_kept, peak_of

pytestmark = needs(ZEROSHARD)
LENGTH, BATCH = 128, 2
SIZES = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3, "head_dim": 16}
MODELS = {
    "llama": SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3": SIZES | {"num_attention_heads": 8, "num_key_value_heads": 1},
    "gpt2": {"vocab_size": 500, "n_embd": 64, "n_inner": 176, "n_layer": 3, "n_head": 4, "attn_pdrop": 0.0},
}


def kept(kind):
    """Bytes of all storages that autograd saves in one forward pass, without parameters and buffers."""
    zeroshard.init_distributed("cpu")
    config = transformers.AutoConfig.for_model(kind, **MODELS[kind])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    batch = {"input_ids": ids, "labels": ids}
    if world.size() > 1:
        batch = next(iter(zeroshard.sequence_parallel(model, [batch], size=world.size())))
    output, bytes_kept = forward_and_kept(model, batch)
    output.loss.backward()
    return bytes_kept


def plan(folder, ranks, *options):
    command = [ZEROSHARD, "plan", "--model", folder, "--world-size", ranks, "--dtype", "fp32", "--batch", BATCH]
    command += ["--sequence-length", LENGTH, "--json", *options]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("kind,ranks", [("llama", 2), ("llama", 4), ("qwen3", 2), ("gpt2", 4)])
def test_planned_and_kept_bytes_of_a_rank(kind, ranks, tmp_path):
    transformers.AutoConfig.for_model(kind, **MODELS[kind]).save_pretrained(tmp_path)
    result = plan(tmp_path, ranks, "--sequence-parallel", ranks)
    planned = json.loads(result.stdout)["activations"]
    assert planned["sequence_parallel"] == ranks
    expected = planned["layers_bytes"] + planned["ends_bytes"] + 4 * 500 * BATCH * LENGTH // ranks
    found = world.run(ranks, kept, kind=kind)
    assert max(found) == pytest.approx(expected, rel=0.02)
    if ranks == 2 and kind == "llama":
        (whole,) = world.run(1, kept, kind=kind)
        # A half, and what attention returns once more: the piece that the next projection takes.
        assert max(found) <= 0.525 * whole


def peak(folder):
    """The most bytes of a step, as of a model whose layers are wider than its heads."""
    zeroshard.init_distributed("cpu")
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = transformers.LlamaConfig(num_hidden_layers=2, vocab_size=4096, **sizes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
    ids = torch.zeros(1, 512, dtype=torch.long)
    batch = {"input_ids": ids, "labels": ids}
    if world.size() > 1:
        batch = next(iter(zeroshard.sequence_parallel(model, [batch], size=world.size())))
    return peak_of(model, Path(folder) / f"trace{world.rank()}.json", batch)


def test_two_ranks_that_share_rows_take_half_of_the_memory(tmp_path):
    (whole,) = world.run(1, peak, folder=str(tmp_path))
    shared = world.run(2, peak, folder=str(tmp_path))
    assert max(shared) <= 0.52 * whole, (shared, whole)


def test_sizes_that_do_not_fit_are_refused(tmp_path):
    transformers.AutoConfig.for_model("llama", **MODELS["llama"]).save_pretrained(tmp_path)
    for ranks, size, part in [
        (3, 3, "so many ranks cannot share 4 heads and 2 key-value heads: sizes that fit are 1, 2, 4"),
        (3, 2, "--sequence-parallel 2 does not divide the 3 ranks"),
    ]:
        result = plan(tmp_path, ranks, "--sequence-parallel", size)
        assert result.returncode == 2 and part in result.stderr
