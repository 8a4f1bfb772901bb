#!/usr/bin/env python3
"""Times encoding of Shakespeare's works on one thread: zeroshard beside Hugging Face's `tokenizers`, interleaved.

    bench/tokenizer.py --build build/release   # writes bench/results/tokenizer.md

Each round encodes all texts, whole works or single lines, with one and then the other; ratios are taken per round.
zeroshard runs as a program of its own (run_tokenizer), `tokenizers` in this process with RAYON_NUM_THREADS=1, by the
faster of its ways: encode, or encode_batch_fast, which leaves out offsets. As many ids must come out, or the command
fails (that they are the same ids is what tests/python/lm/test_tokenizer.py checks).
"""

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import cpu_name

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parent.parent
NAMES = {"gpt2": "GPT-2", "llama3": "Llama 3", "qwen": "Qwen 2", "unigram": "Unigram, 8000 pieces, as T5"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="build directory")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "tokenizer.md")
    return parser.parse_args()


def train_unigram(folder, texts):
    """Nobody publishes one in a package: trained on the texts, with the normalizer and the splits of T5."""
    from tokenizer_data import precompiled, t5_pre_tokenizer
    from tokenizers import Tokenizer, models, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = precompiled()
    tokenizer.pre_tokenizer = t5_pre_tokenizer()
    trainer = trainers.UnigramTrainer(vocab_size=8000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def ours(data, path, texts):
    """MB/s and the number of ids of a pass of a new process, whose cache is empty."""
    done = subprocess.run(
        [data.RUN_TOKENIZER, "time", str(path), "0"], input=data.frames(texts), stdout=subprocess.PIPE, check=True
    )
    speed, ids = done.stdout.split()
    return float(speed), int(ids)


def theirs(call, size):
    begin = time.perf_counter()
    encodings = call()
    took = time.perf_counter() - begin
    return size / 1e6 / took, sum(len(one.ids) for one in encodings)


def faster_way(tokenizer, texts):
    """One of the two ways to encode, by a trial on some of the texts."""
    ways = {
        "encode": lambda some: [tokenizer.encode(text, add_special_tokens=False) for text in some],
        "encode_batch_fast": lambda some: tokenizer.encode_batch_fast(some, add_special_tokens=False),
    }
    some = texts[: len(texts) // 6]
    speeds = {}
    for name in (*ways, *ways):
        speeds[name] = max(speeds.get(name, 0), theirs(lambda way=ways[name]: way(some), 1)[0])
    best = max(speeds, key=speeds.get)
    return best, ways[best]


def measure(data, path, texts, rounds):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    raw = [text.encode() for text in texts]
    size = sum(map(len, raw))
    way, call = faster_way(tokenizer, texts)
    row = {"way": way, "ours": [], "theirs": []}
    for _ in range(rounds):
        speed, ids = ours(data, path, raw)
        other_speed, other_ids = theirs(lambda: call(texts), size)
        if ids != other_ids:
            raise SystemExit(f"{path}: {ids} ids here, {other_ids} there")
        row["ours"].append(speed)
        row["theirs"].append(other_speed)
    row["ids"] = ids
    return row


def main():
    options = parse_arguments()
    os.environ["ZEROSHARD_BUILD_DIR"] = str(options.build.resolve())
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    import tokenizer_data as data
    import tokenizers

    load = os.getloadavg()
    works = list(data.shakespeare().values())
    size = sum(len(text.encode()) for text in works)
    kinds = {"works": works, "lines": [line for text in works for line in text.splitlines(keepends=True)]}
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            path = train_unigram(Path(folder), works) if name == "unigram" else data.PUBLISHED[name](Path(folder))
            for kind, texts in kinds.items():
                rows[name, kind] = measure(data, path, texts, options.rounds)
                print(name, kind, rows[name, kind], flush=True)
    before, after = (" / ".join(f"{value:.1f}" for value in loads) for loads in (load, os.getloadavg()))
    lines = [
        f"# Encoding Shakespeare on one thread, {datetime.date.today().isoformat()}",
        "",
        f"`bench/tokenizer.py --rounds {options.rounds}`; {len(works)} works, {size / 1e6:.1f} MB; {options.rounds} "
        f"interleaved rounds; {cpu_name()}, {os.cpu_count()} cores, kernel {platform.release()}, load {before} "
        f"before and {after} after; tokenizers {tokenizers.__version__}.",
        "",
        "MB/s of text, median (least to most) of the rounds; the ratio is the median of the rounds' ratios. "
        "zeroshard's cache of words is empty when a round begins.",
        "",
        "| tokenizer | texts | ids | zeroshard | tokenizers | its way | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, kind), row in rows.items():
        cells = [
            f"{statistics.median(row[k]):.1f} ({min(row[k]):.1f} to {max(row[k]):.1f})" for k in ("ours", "theirs")
        ]
        ratio = statistics.median(a / b for a, b in zip(row["ours"], row["theirs"], strict=True))
        lines.append(
            f"| {NAMES[name]} | {kind} | {row['ids']} | {cells[0]} | {cells[1]} | `{row['way']}` | {ratio:.1f} |"
        )
    options.out.write_text("\n".join(lines) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
