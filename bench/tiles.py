#!/usr/bin/env python3
"""Memory and time of a loss and of an MLP in tiles, beside the same whole.

    .venv/bin/python bench/tiles.py     # table on stdout; bench/results/tiles-DATE.{md,json}

Each case is one forward and backward pass of a head of transformers' Llama, or of one of its MLPs, in fp32. The peak is
that of live tensors: the bytes that torch's CPU allocator has given out, and not got back, at most. Parameters and the
hidden states that are given are not in it; gradients are. Goals: with 32,768 words and 4,096 tokens, 8 tiles need at
most 0.2 of the plain loss, and gradients are within 1e-6.
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
import transformers
import zeroshard
from machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--intermediate", type=int, default=4096, help="of the MLP")
    parser.add_argument("--tiles", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="without suffix (default: bench/results/tiles-DATE)")
    return parser.parse_args()


def make_model(arguments):
    config = transformers.LlamaConfig(
        vocab_size=arguments.vocabulary,
        hidden_size=arguments.hidden,
        intermediate_size=arguments.intermediate,
        num_hidden_layers=1,
        num_attention_heads=8,
        use_cache=False,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).train()


def peak_of(run):
    """The most bytes that are live at once while `run` runs, beside those from before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        trace = json.loads(Path(file.name).read_text())
    events = [event for event in trace["traceEvents"] if event.get("name") == "[memory]"]
    return max(itertools.accumulate(event["args"]["Bytes"] for event in sorted(events, key=lambda event: event["ts"])))


def cases(arguments, model):
    """By name: a function that computes a loss of hidden states, and these."""
    hidden = torch.randn(1, arguments.tokens, arguments.hidden, requires_grad=True)
    labels = torch.randint(0, arguments.vocabulary, (1, arguments.tokens))
    ready = transformers.modeling_outputs.BaseModelOutputWithPast(last_hidden_state=hidden)
    model.model.forward = lambda *args, **kwargs: ready  # what is measured comes behind the body
    mlp = model.model.layers[0].mlp
    return {
        "loss": (lambda: model(input_ids=labels, labels=labels).loss, hidden),
        "mlp": (lambda: mlp(hidden).square().mean(), hidden),
    }


def measure(arguments, model, loss_of, hidden):
    params = list(model.parameters())

    def step():
        for tensor in (hidden, *params):
            tensor.grad = None
        loss_of().backward()

    step()
    seconds = []
    for _ in range(arguments.rounds):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    grads = [tensor.grad.clone() for tensor in (hidden, *params) if tensor.grad is not None]
    for tensor in (hidden, *params):
        tensor.grad = None
    return {"peak_bytes": peak_of(loss_of_and_backward(loss_of)), "seconds": statistics.median(seconds)}, grads


def loss_of_and_backward(loss_of):
    return lambda: loss_of().backward()


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    model = make_model(arguments)
    rows = []
    for name, (loss_of, hidden) in cases(arguments, model).items():
        for tiles in (None, *arguments.tiles):
            zeroshard.tile(model, loss=tiles, mlp=tiles)
            row, grads = measure(arguments, model, loss_of, hidden)
            if tiles is None:
                plain, expected = row, grads
            row |= {
                "case": name,
                "tiles": tiles or 1,
                "peak_of_plain": row["peak_bytes"] / plain["peak_bytes"],
                "seconds_of_plain": row["seconds"] / plain["seconds"],
                "gradients_differ_by": max((a - b).abs().max().item() for a, b in zip(grads, expected, strict=True)),
            }
            rows.append(row)
            zeroshard.tile(model, loss=None, mlp=None)
    report(arguments, rows)


def report(arguments, rows):
    sizes = {name: vars(arguments)[name] for name in ("vocabulary", "tokens", "hidden", "intermediate")}
    lines = [
        "# Losses and MLPs in tiles",
        "",
        f"`bench/tiles.py --tiles {' '.join(map(str, arguments.tiles))} --rounds {arguments.rounds}`, one thread of "
        f"{cpu_name()}, torch {torch.__version__}, Linux {platform.release()}, {datetime.date.today()}; load at the "
        f"end {os.getloadavg()[0]:.1f}. " + ", ".join(f"{name} {value}" for name, value in sizes.items()),
        "",
        "| case | tiles | peak MB | of plain | seconds | of plain | gradients differ by |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['case']} | {row['tiles']} | {row['peak_bytes'] / 1e6:.1f} | {row['peak_of_plain']:.3f} "
            f"| {row['seconds']:.3f} | {row['seconds_of_plain']:.2f} | {row['gradients_differ_by']:.1e} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    out = arguments.out or ROOT / f"bench/results/tiles-{datetime.date.today()}"
    out.with_suffix(".md").write_text(text)
    out.with_suffix(".json").write_text(json.dumps({"sizes": sizes, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
