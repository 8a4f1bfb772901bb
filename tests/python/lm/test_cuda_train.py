"""`zeroshard train` and `zeroshard generate` on a GPU: the CPU's losses nearly, and the same bits with any offload."""

import hashlib
import re

import devices
import pytest
import test_generate
import test_train_command
import torch
from built import ZEROSHARD_TORCH, needs
from tokenizer_data import learnable_tokens
from train_program import BATCH, LENGTH, STEPS, metrics, plain_losses

pytestmark = [needs(ZEROSHARD_TORCH), *devices.NEEDS_GPU]

TOKENS = learnable_tokens(LENGTH * BATCH * STEPS + 500)
NONE, HOST = {"device": "none"}, {"device": "cpu"}
TIERS = {
    "gpu": (NONE, NONE, {}),
    "host": (HOST, HOST, {}),
    "states": (HOST, NONE, {"gradients": "device", "activations": "cpu"}),
    "share": (HOST | {"ratio": 0.4}, NONE, {}),
    "files": ("file", "file", {"gradients": "nvme", "activations": "nvme"}),
}


def offload(name, folder):
    states, parameters, own = TIERS[name]
    places = [
        {"device": "nvme", "nvme_path": str(folder)} if place == "file" else place for place in (states, parameters)
    ]
    zero = {"stage": 3, "offload_optimizer": places[0], "offload_param": places[1]}
    return {"zero_optimization": zero, "zeroshard": {"offload": own, "shard_one_rank": True}}


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
def test_losses_are_nearly_those_of_plain_pytorch(tmp_path, kind):
    model, train = test_train_command.make(tmp_path, TOKENS, kind, device="cuda")
    done = test_train_command.run(test_train_command.write(tmp_path, train, 3))
    assert done.returncode == 0, done.stderr
    steps = metrics(tmp_path)
    expected = plain_losses(model, TOKENS)
    assert [steps[step + 1]["loss"] for step in range(STEPS)] == pytest.approx(expected, abs=5e-3)
    assert expected[-1] < expected[0] - 0.5, "nothing was learned"


def test_no_stage_and_no_tier_changes_a_bit(tmp_path):
    _, train = test_train_command.make(tmp_path, TOKENS, steps=5, device="cuda", activation_checkpointing="full")
    runs = {name: offload(name, tmp_path) for name in TIERS} | {stage: {} for stage in range(4)}
    digests = {}
    for name, more in runs.items():
        folder = tmp_path / str(name)
        folder.mkdir()
        stage = name if isinstance(name, int) else 3
        config = test_train_command.write(folder, train | {"output": str(folder / "trained")}, stage, **more)
        done = test_train_command.run(config)
        assert done.returncode == 0, (name, done.stderr)
        digests[name] = hashlib.sha256((folder / "trained" / "model.safetensors").read_bytes()).hexdigest()
    assert len(set(digests.values())) == 1, digests


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    ends = []
    for name, parts in (("whole", [6]), ("parts", [3, 6])):
        folder = tmp_path / name
        folder.mkdir()
        _, train = test_train_command.make(folder, TOKENS, device="cuda")
        for steps in parts:
            config = test_train_command.write(folder, train | {"steps": steps}, **offload("host", folder))
            done = test_train_command.run(config)
            assert done.returncode == 0, done.stderr
        ends.append((folder / "trained" / "model.safetensors").read_bytes())
    assert re.search("goes on from step 3", done.stdout)
    assert ends[0] == ends[1]


@pytest.mark.skipif(torch.cuda.device_count() >= 12, reason="needs fewer GPUs")
def test_more_ranks_than_gpus_are_refused(tmp_path):
    _, train = test_train_command.make(tmp_path, TOKENS, device="cuda")
    done = test_train_command.run(test_train_command.write(tmp_path, train, 3), ranks=12)
    assert done.returncode != 0 and "12 ranks on this host need a device each" in done.stderr, done.stderr


@pytest.mark.parametrize("kind", test_generate.KINDS)
def test_the_likeliest_text_is_that_of_transformers(tmp_path, kind):
    tokenizer = test_generate.train_byte_level(
        [test_generate.PROMPT, "that is the question: whether 'tis nobler"], ["<|end|>"]
    )
    model = test_generate.make_model_directory(tmp_path, kind, tokenizer)
    expected = test_generate.likeliest(model, tokenizer)
    arguments = ["--prompt", test_generate.PROMPT, "--max-tokens", test_generate.TOKENS, "--temperature", 0]
    done = test_generate.run(tmp_path, *arguments, "--device", "cuda")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode(errors="replace") == expected + "\n"
