#!/usr/bin/env python3
"""Trains a small Llama from scratch on a text file, with Transformers' Trainer.

zeroshard run --num_gpus 2 examples/python/pretrain.py --deepspeed examples/configs/pretrain.json
"""

from dataclasses import dataclass

from small_llama import ROOT, blocks, load
from transformers import HfArgumentParser, Trainer, TrainingArguments, default_data_collator


@dataclass
class Options:
    text: str = str(ROOT / "README.md")
    length: int = 128


def main():
    parser = HfArgumentParser((Options, TrainingArguments))
    parser.set_defaults(
        output_dir="runs/pretrain", max_steps=200, per_device_train_batch_size=8, learning_rate=3e-3, warmup_steps=10,
        logging_steps=10, save_strategy="no", report_to="none", seed=1,
    )  # fmt: skip
    options, arguments = parser.parse_args_into_dataclasses()
    model, tokenizer = load()
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=blocks(options.text, tokenizer, options.length),
        data_collator=default_data_collator,
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
