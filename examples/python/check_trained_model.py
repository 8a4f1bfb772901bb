#!/usr/bin/env python3
"""Loads the model that `zeroshard train` has written with transformers, and compares the validation loss of both.

check_trained_model.py CONFIG: exits with 1 when they differ by more than 1e-3.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def rows_of(ids, length):
    """(inputs, targets) of the rows that zeroshard cuts from the concatenated documents (packing "stream")."""
    stream = [(token, following) for text in ids for token, following in zip(text, [*text[1:], -100], strict=True)]
    for begin in range(0, len(stream), length):
        yield [token for token, _ in stream[begin : begin + length]], [f for _, f in stream[begin : begin + length]]


@torch.no_grad()
def validation_loss(model, rows):
    total, count = 0.0, 0
    for inputs, targets in rows:
        logits = model(torch.tensor([inputs])).logits[0]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="sum").item()
        count += sum(target != -100 for target in targets)
    return total / count


def main():
    with open(sys.argv[1]) as file:
        train = json.load(file)["train"]
    model = AutoModelForCausalLM.from_pretrained(train["output"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(train["output"])
    ids = []
    for path in train["data"]["validation"]:
        with open(path) as file:
            ids += [[*tokenizer(json.loads(line)["text"])["input_ids"], tokenizer.eos_token_id] for line in file]
    limit = train["evaluation"]["rows"]
    rows = [row for _, row in zip(range(limit), rows_of(ids, train["data"]["length"]), strict=False)]
    ours = None
    with open(train["output"] + "/metrics.jsonl") as file:
        for line in file:
            ours = json.loads(line).get("validation_loss", ours)
    theirs = validation_loss(model, rows)
    print(f"validation loss: zeroshard {ours:.5f}, transformers {theirs:.5f} on the exported model")
    return 0 if abs(ours - theirs) < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
