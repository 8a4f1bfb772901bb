"""Ordinary scripts for TRL, one after another: a trainer and a stage each, as sft:3, dpo:3:lora, grpo:2, ...

Arguments: a folder with a saved model, and cases. One without a stage runs without DeepSpeed. Tells on rank 0 what each
logged.
"""

import json
import math
import os
import sys

import torch
from datasets import Dataset, load_from_disk
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

STEPS = 3
WORDS = ["[PAD]", "[EOS]", "[UNK]", *(f"w{index}" for index in range(58))]


def tokenizer():
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]", padding_side="left"
    )


def texts(count, length, seed):
    ids = torch.randint(3, len(WORDS), (count, length), generator=torch.Generator().manual_seed(seed))
    return [" ".join(WORDS[i] for i in row) for row in ids.tolist()]


def deepspeed(stage):
    auto = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto")
    return {**auto, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}


def options(folder, stage):
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    return {
        "output_dir": os.path.join(folder, "out"),
        "deepspeed": None if stage is None else deepspeed(stage),
        "max_steps": STEPS,
        "per_device_train_batch_size": 4 // ranks,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": False,
        "use_cpu": True,
        "seed": 3,
        "model_init_kwargs": {"dtype": "float32"},
    }


def lora(seed=5):
    set_seed(seed)
    return LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def sft(folder, stage, peft_config):
    data = Dataset.from_dict({"text": texts(24, 9, 0)})
    arguments = SFTConfig(**options(folder, stage), max_length=16)
    return SFTTrainer(
        os.path.join(folder, "llama"),
        args=arguments,
        train_dataset=data,
        processing_class=tokenizer(),
        peft_config=peft_config,
    )


def pairs():
    answers = [[f" {text}" for text in texts(24, 5, seed)] for seed in (2, 3)]
    return Dataset.from_dict({"prompt": texts(24, 4, 1), "chosen": answers[0], "rejected": answers[1]})


def dpo(folder, stage, peft_config):
    arguments = DPOConfig(**options(folder, stage), max_length=16)
    return DPOTrainer(
        os.path.join(folder, "llama"),
        args=arguments,
        train_dataset=pairs(),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )


def precomputed(folder, stage, peft_config):
    """DPO whose reference values are computed before training. Ranks share them in a file beside that of the data."""
    arguments = DPOConfig(**options(folder, stage), max_length=16, precompute_ref_log_probs=True)
    data = os.path.join(folder, f"pairs-{stage}")
    with arguments.main_process_first():
        if not os.path.exists(data):
            pairs().save_to_disk(data)
    return DPOTrainer(
        os.path.join(folder, "llama"),
        args=arguments,
        train_dataset=load_from_disk(data),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )


def reward(completions, **_):
    return [float(len(set(text.split()))) for text in completions]


def grpo(folder, stage, peft_config):
    arguments = GRPOConfig(**options(folder, stage), num_generations=2, max_completion_length=5, beta=0.1)
    return GRPOTrainer(
        os.path.join(folder, "llama"),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": texts(24, 4, 4)}),
        processing_class=tokenizer(),
        peft_config=peft_config,
    )


def trained(case, folder):
    """The logged steps of a case."""
    kind, *rest = case.split(":")
    stage = int(rest[0]) if rest and rest[0].isdigit() else None
    trainer = globals()[kind](folder, stage, lora() if "lora" in rest else None)
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(steps) == STEPS, trainer.state.log_history
    assert all(math.isfinite(step[name]) for step in steps for name in ("loss", "grad_norm")), steps
    return [[step["loss"], step["grad_norm"]] for step in steps]


if __name__ == "__main__":
    for case in sys.argv[2:]:
        steps = trained(case, sys.argv[1])
        if os.environ.get("RANK", "0") == "0":
            print("\nTOLD " + json.dumps([case, steps]), flush=True)
