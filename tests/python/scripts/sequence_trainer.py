"""An ordinary script for Transformers' Trainer with Accelerate's sequence parallelism.

Arguments: a folder with a saved model, the stage, the ranks that share a row (0: one process without DeepSpeed), and
the names of cases. Tells on rank 0 the losses and gradient norms of each case. Under `accelerate launch` with a file
that configures DeepSpeed and parallelism, the file counts, and stage and ranks name folders alone.
"""

import json
import os
import sys

import torch
from accelerate.utils import DeepSpeedSequenceParallelConfig, ParallelismConfig
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, set_seed

FOLDER, STAGE, SIZE, CASES = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
RANKS = int(os.environ.get("WORLD_SIZE", 1))
ROWS, BATCH = 32, 2
BY_FILE = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"


def samples(padded=False, seed=0, groups=1):
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number, ids in enumerate(torch.randint(0, 61, (ROWS, 16), generator=generator)):
        labels = ids.clone()
        if padded:  # prompts without a loss, of different lengths
            labels[: number % 9] = -100
        rows.append({"input_ids": ids, "labels": labels, "position_ids": torch.arange(16)})
    if SIZE == 0 and groups == 2:  # in the order in which two groups of two ranks take batches of two
        order = [first + place for first in range(0, ROWS, 8) for place in (0, 1, 4, 5, 2, 3, 6, 7)]
        rows = [rows[index] for index in order]
    return rows


def arguments(accumulation=1, made_by=TrainingArguments, groups=1, **changes):
    auto = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto")
    options = {
        "output_dir": os.path.join(FOLDER, f"out-{RANKS}-{STAGE}-{SIZE}"),
        "per_device_train_batch_size": BATCH * (groups if SIZE == 0 else 1),
        "gradient_accumulation_steps": accumulation,
        "train_sampling_strategy": "sequential",
        "learning_rate": 1e-2,
        "lr_scheduler_type": "linear",
        "max_steps": 6,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 1,
    }
    if SIZE > 0 and not BY_FILE:
        zero = {"stage": STAGE, "stage3_gather_16bit_weights_on_model_save": True}
        options["deepspeed"] = {**auto, "train_batch_size": "auto", "zero_optimization": zero}
        options["parallelism_config"] = ParallelismConfig(
            sp_backend="deepspeed",
            sp_size=SIZE,
            dp_shard_size=RANKS // SIZE,
            sp_handler=DeepSpeedSequenceParallelConfig(
                sp_seq_length=16, sp_seq_length_is_variable=True, sp_attn_implementation="sdpa"
            ),
        )
    return made_by(**{**options, **changes})


def tuned():
    """By TRL, whose rows have different lengths."""
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = Tokenizer(WordLevel({"[PAD]": 0, "[EOS]": 1, "[UNK]": 2}, unk_token="[UNK]"))
    special = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    rows = [row["input_ids"].tolist()[: 16 - number % 5] for number, row in enumerate(samples())]
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="sdpa"),
        args=arguments(made_by=SFTConfig, max_length=16, bf16=False, gradient_checkpointing=False),
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, **special),
    )
    trainer.train()
    return steps_of(trainer)


def resumed():
    """Saved within an epoch, and continued by another trainer."""
    folder = os.path.join(FOLDER, f"saved-{RANKS}-{STAGE}-{SIZE}")
    options = {
        "output_dir": folder,
        "max_steps": 6,
        "save_strategy": "steps",
        "save_steps": 3,
        "save_only_model": False,
    }
    set_seed(1)
    load = lambda: AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="sdpa")  # noqa: E731
    Trainer(load(), arguments(**options), train_dataset=samples()).train()
    again = Trainer(load(), arguments(**options), train_dataset=samples())
    again.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-3"))
    return steps_of(again)


def steps_of(trainer):
    return [[entry["loss"], entry["grad_norm"]] for entry in trainer.state.log_history if "loss" in entry]


def trained(padded=False, evaluates=False, groups=1, **changes):
    set_seed(1)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, attn_implementation="sdpa")
    rows = samples(padded, groups=groups)
    trainer = Trainer(model, arguments(groups=groups, **changes), train_dataset=rows, eval_dataset=samples(seed=1))
    trainer.train()
    steps = steps_of(trainer)
    return [steps, trainer.evaluate()["eval_loss"]] if evaluates else steps


CALLS = {
    "plain": lambda: trained(evaluates=True),
    "padded": lambda: trained(padded=True),
    "accumulates": lambda: trained(accumulation=2, max_steps=3),
    "checkpointed": lambda: trained(gradient_checkpointing=True),
    "two_groups": lambda: trained(groups=2),
    "tuned": tuned,
    "resumed": resumed,
}

for case in CASES:
    result = CALLS[case]()
    if int(os.environ.get("RANK", 0)) == 0:
        print("\nTOLD " + json.dumps([case, result]))
