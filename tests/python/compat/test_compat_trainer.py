"""Unmodified scripts for Transformers' Trainer on two and four ranks: the numbers of one process without DeepSpeed."""

import models
import pytest
import torch
import transformers
import warm
from built import TESTS, ZEROSHARD, needs
from deepspeed_scripts import called, run

pytestmark = needs(ZEROSHARD)
SCRIPT = str(TESTS / "scripts" / "trainers.py")
FOUR = [3, 2, *(pytest.param(stage, marks=pytest.mark.matrix) for stage in (0, 1))]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    models.tiny_llama().save_pretrained(folder / "llama")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=61, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=32,
        initializer_range=0.1, use_cache=False,
    )  # fmt: skip
    transformers.MixtralForCausalLM(config).save_pretrained(folder / "mixtral")
    return str(folder)


@pytest.fixture(scope="module")
def alone(saved):
    """What one process without DeepSpeed tells of every case."""
    cases = ["mixture", "lora_bf16", "best", "whole_batches", "adalora"]
    return dict(called(warm.python(), SCRIPT, saved, "-1", *cases, path=False))


def check_near(steps, expected, loss_within=1e-4, norm_within=1e-3):
    for (loss, norm), (expected_loss, expected_norm) in zip(steps, expected, strict=True):
        assert loss == pytest.approx(expected_loss, abs=loss_within)
        assert norm == pytest.approx(expected_norm, abs=norm_within)


def test_ranks_use_different_experts_and_bf16_has_adapters_in_fp32(saved, alone):
    told = dict(run("--num_gpus", "2", SCRIPT, saved, "3", "mixture", "lora_bf16"))
    steps, used = told["mixture"]
    check_near(steps, alone["mixture"][0])
    assert used[0] != used[1]
    steps, adapters, base = told["lora_bf16"]
    assert (adapters, base) == (["torch.float32"], ["torch.bfloat16"])
    check_near(steps, alone["lora_bf16"][0])


@pytest.mark.parametrize("stage", FOUR)
def test_four_ranks(saved, alone, stage):
    """The best model is loaded, evaluated and predicts; micro-batches in windows, an epoch's last of them shorter."""
    told = dict(run("--num_gpus", "4", SCRIPT, saved, str(stage), "best", "accumulates"))
    check_near(told["accumulates"], alone["whole_batches"], loss_within=1e-5, norm_within=1e-5)
    seen, evaluated, predicted, logits, shape = told["best"]
    expected = alone["best"]
    assert seen == pytest.approx(expected[0], abs=1e-3)  # grows to 9 with the rates of the callback
    assert evaluated == min(seen) != seen[-1]
    assert [evaluated, predicted] == pytest.approx(expected[1:3], abs=1e-4)
    assert logits == pytest.approx(expected[3], abs=1e-4) and shape == expected[4] == [16, 12, 61]


ADALORA = [(2, 2), (2, 3), *(pytest.param(ranks, 0, marks=pytest.mark.matrix) for ranks in (1, 2))]


@pytest.mark.parametrize("ranks,stage", ADALORA)
def test_adalora_reads_gradients_after_the_step_and_takes_ranks_away(saved, alone, ranks, stage):
    ((_, (steps, kept, zeros)),) = run("--num_gpus", str(ranks), SCRIPT, saved, str(stage), "adalora")
    check_near(steps, alone["adalora"][0])
    assert [kept, zeros] == alone["adalora"][1:] and sum(zeros) == 16 - sum(rank for _, rank in kept)


def test_adalora_in_bf16(saved, alone):
    told = dict(run("--num_gpus", "2", SCRIPT, saved, "3", "adalora_bf16"))
    steps, kept, zeros = told["adalora_bf16"]
    check_near(steps, alone["adalora"][0], loss_within=0.05, norm_within=0.01)
    assert sum(rank for _, rank in kept) == sum(rank for _, rank in alone["adalora"][1]) == 16 - sum(zeros)
