#!/usr/bin/env python3
"""LoRA with PEFT: a frozen model with small trainable matrices beside its linear layers, and a head of its own.

zeroshard run --num_gpus 2 examples/python/lora.py --deepspeed examples/configs/lora.json

`--model FOLDER` takes a model to go on with, such as runs/pretrain. The folder of the result holds the adapter alone.
"""

from dataclasses import dataclass

from peft import LoraConfig, get_peft_model
from small_llama import ROOT, blocks, load
from transformers import HfArgumentParser, Trainer, TrainingArguments, default_data_collator


@dataclass
class Options:
    model: str = ""
    text: str = str(ROOT / "CONTRIBUTING.md")
    length: int = 128
    rank: int = 8


def main():
    parser = HfArgumentParser((Options, TrainingArguments))
    parser.set_defaults(
        output_dir="runs/lora", max_steps=100, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=10,
        save_strategy="no", report_to="none", seed=1,
    )  # fmt: skip
    options, arguments = parser.parse_args_into_dataclasses()
    model, tokenizer = load(options.model)
    lora = LoraConfig(
        r=options.rank,
        lora_alpha=2 * options.rank,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
        modules_to_save=["lm_head"],
        task_type="CAUSAL_LM",
    )
    trainer = Trainer(
        model=get_peft_model(model, lora),
        args=arguments,
        train_dataset=blocks(options.text, tokenizer, options.length),
        data_collator=default_data_collator,
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
