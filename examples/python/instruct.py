#!/usr/bin/env python3
"""Instruction tuning with TRL's SFTTrainer: only the tokens of the answers count.

zeroshard run --num_gpus 2 examples/python/instruct.py --deepspeed examples/configs/instruct.json

The task is made here: words to spell backwards. `--data FILE` takes JSON lines with "prompt" and "completion" instead,
and `--model FOLDER` a model to go on with, such as runs/pretrain.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from small_llama import ROOT, load
from transformers import HfArgumentParser
from trl import SFTConfig, SFTTrainer


@dataclass
class Options:
    model: str = ""
    data: str = ""


def read(path):
    if path:
        return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    words = sorted(set(re.findall(r"\b[a-z]{3,8}\b", (ROOT / "README.md").read_text(encoding="utf-8"))))
    return [{"prompt": f"Spell {word} backwards:", "completion": f" {word[::-1]}"} for word in words]


def main():
    parser = HfArgumentParser((Options, SFTConfig))
    parser.set_defaults(
        output_dir="runs/instruct", max_steps=200, per_device_train_batch_size=8, learning_rate=3e-3, max_length=128,
        logging_steps=10, save_strategy="no", report_to="none", seed=1, bf16=torch.cuda.is_available(),
    )  # fmt: skip
    options, arguments = parser.parse_args_into_dataclasses()
    model, tokenizer = load(options.model)
    data = Dataset.from_list(read(options.data))
    trainer = SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
