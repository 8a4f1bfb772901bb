#!/usr/bin/env python3
"""Trains a model whose states are larger than the memory that the process is allowed; `make demo` ends with it.

A Llama of 100 M parameters: in bf16 with AdamW parameters, gradients, master weights and moments take 16 bytes each.
The configuration keeps the last two in a file, and the system refuses the process more memory of its own than ALLOWED
(`ulimit -d`). Prints both, and the most that was resident. Exits with 1 if training fails or nothing was saved.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "examples/configs/beyond_memory.json"
ALLOWED = 1_200_000_000
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def write_model(folder):
    """A config.json and a tokenizer of single bytes."""
    from small_llama import byte_tokenizer  # noqa: PLC0415: torch comes with it

    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(MODEL | {"vocab_size": len(tokenizer)}, indent=2))


def zeroshard(*arguments, **more):
    return subprocess.run([Path(sys.executable).with_name("zeroshard"), *map(str, arguments)], cwd=ROOT, **more)


def plan(model, config):
    done = zeroshard("plan", "--model", model, "--world-size", 1, "--config", config, "--json", capture_output=True)
    if done.returncode != 0:
        sys.exit(done.stderr.decode())
    return json.loads(done.stdout)


def limit_memory(allowed):
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--allowed", type=int, default=ALLOWED, help="bytes of memory (default: %(default)s)")
    allowed = parser.parse_args().allowed
    folder = ROOT / "runs/beyond-memory"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "model").mkdir(parents=True)
    (folder / "swap").mkdir()
    write_model(folder / "model")
    shutil.copy(ROOT / "README.md", folder / "text.txt")
    whole = json.loads(CONFIG.read_text())

    # Without files: the planner knows that it does not fit, and what would.
    in_memory = folder / "in_memory.json"
    in_memory.write_text(json.dumps(whole | {"zero_optimization": {"stage": 1}, "zeroshard": {}}))
    states = plan(folder / "model", in_memory)["model_states_bytes_per_rank"]
    in_memory.write_text(json.dumps(whole | {"zero_optimization": {"stage": 1}}))
    refused = zeroshard("train", in_memory, "--device", "cpu", capture_output=True, text=True)
    told = next((line for line in refused.stderr.splitlines() if "does not fit" in line), refused.stderr)
    print(f"With all states in memory:\n  {told.strip()}\n\nWith master weights and moments in a file:", flush=True)

    done = zeroshard("train", CONFIG, "--device", "cpu", preexec_fn=lambda: limit_memory(allowed))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"states {states:,} bytes, allowed {allowed:,}, peak resident {peak:,}")
    shutil.rmtree(folder / "trained", ignore_errors=True)
    return 0 if refused.returncode != 0 and done.returncode == 0 and peak < states > allowed else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(min(4, os.cpu_count() or 1)))
    sys.exit(main())
