"""Unmodified scripts for TRL: supervised tuning, preferences and reinforcement, with and without LoRA, on two ranks."""

import models
import pytest
import warm
from built import TESTS, ZEROSHARD, needs
from deepspeed_scripts import called, run
from test_compat_transformers import check_near

pytestmark = needs(ZEROSHARD)
SCRIPT = str(TESTS / "scripts" / "trl_trainers.py")
ALONE = ["sft", "sft:lora", "dpo", "dpo:lora", "precomputed"]
STAGE_3 = ["sft:3", "sft:3:lora", "dpo:3", "dpo:3:lora", "precomputed:3", "grpo:3", "grpo:3:lora"]
STAGE_2 = ["sft:2", "grpo:2"]


@pytest.fixture
def folder(tmp_path):
    models.tiny_llama(pad_token_id=0, eos_token_id=1).save_pretrained(tmp_path / "llama")
    return str(tmp_path)


def test_trainers_of_trl(folder):
    """The losses and norms of one process; those of GRPO, whose ranks draw their own numbers, at both stages."""
    expected = dict(called(warm.python(), SCRIPT, folder, *ALONE, path=False))
    told = dict(run("--num_gpus", "2", SCRIPT, folder, *STAGE_3, *STAGE_2))
    assert sorted(told) == sorted(STAGE_3 + STAGE_2)
    for case, steps in told.items():
        kind, stage, *rest = case.split(":")
        if kind == "grpo":
            check_near(steps, told[":".join([kind, "3", *rest])])
        else:
            check_near(steps, expected[":".join([kind, *rest])])


@pytest.mark.matrix
@pytest.mark.parametrize("ranks,case", [(2, "grpo"), (2, "grpo:lora"), (4, "grpo")])
def test_grpo_has_the_losses_of_ranks_without_deepspeed(folder, ranks, case):
    """That is DistributedDataParallel, where each rank draws the same numbers."""
    command = "--num_gpus", str(ranks), SCRIPT, folder
    kind, *rest = case.split(":")
    ((_, expected),) = run(*command, case)
    ((_, steps),) = run(*command, ":".join([kind, "3", *rest]))
    check_near(steps, expected)
