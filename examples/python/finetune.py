#!/usr/bin/env python3
"""Trains a pretrained model of Transformers on a text file, in a loop of its own, and writes one that from_pretrained
reads.

zeroshard run --nproc 2 examples/python/finetune.py --model runs/pretrain --out runs/finetuned
"""

import argparse
import os

import zeroshard
from small_llama import ROOT, blocks, load
from transformers import default_data_collator

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
    "steps_per_print": 5,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="", help="a directory of a model and its tokenizer; else a small Llama")
    parser.add_argument("--text", default=str(ROOT / "README.md"))
    parser.add_argument("--out", default="runs/finetuned")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()

    model, tokenizer = load(arguments.model)
    data = blocks(arguments.text, tokenizer, length=128)
    engine, _, loader, _ = zeroshard.initialize(
        model=model,
        model_parameters=model.parameters(),
        training_data=data,
        collate_fn=default_data_collator,
        config=CONFIG,
    )
    for epoch in range(arguments.epochs):
        for batch in loader:
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
        if os.environ.get("RANK", "0") == "0":
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)
    engine.save_pretrained(arguments.out, tokenizer=tokenizer)


if __name__ == "__main__":
    main()
