#!/usr/bin/env python3
"""Prepares the input of `zeroshard train examples/configs/train_shakespeare.json`: a model directory and texts.

The directory has a config.json (a Llama of 10 M parameters, no weights: training starts from scratch) and a tokenizer;
the texts are Shakespeare's works as JSON lines, one work each, three of them held out.
"""

import argparse
import json
from pathlib import Path

from shakespeare_data import END_OF_TEXT, HELD_OUT, Shakespeare, read_texts

ROOT = Path(__file__).resolve().parents[2]


def write_texts(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / ".data/shakespeare", help="cache of texts and tokens")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/shakespeare-model")
    arguments = parser.parse_args()
    data = Shakespeare(arguments.data)
    config = data.llama_config()
    arguments.out.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(arguments.out)
    data.tokenizer.save(str(arguments.out / "tokenizer.json"))
    special = {"eos_token": END_OF_TEXT, "tokenizer_class": "PreTrainedTokenizerFast"}
    (arguments.out / "tokenizer_config.json").write_text(json.dumps(special, indent=2))
    texts = read_texts(arguments.data)
    write_texts(arguments.out / "train.jsonl", [text for name, text in texts.items() if name not in HELD_OUT])
    write_texts(arguments.out / "validation.jsonl", [texts[name] for name in HELD_OUT])
    print(f"{arguments.out}: config.json, tokenizer.json, train.jsonl, validation.jsonl")


if __name__ == "__main__":
    main()
