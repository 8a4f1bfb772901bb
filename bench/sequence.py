#!/usr/bin/env python3
"""Times a step of one long row on one rank, and on ranks that share the row, with one core each.

    bench/sequence.py [--length 2048] [--ranks 2] [--rounds 7] [--json FILE]

The processes live through the whole run and take turns, so that slow drifts of the machine hit all alike. Prints for
each number of ranks the seconds of a step, the seconds of its processor, which other load does not change, the bytes
that autograd keeps on a rank, and the ratios to one rank.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

from machine import cpu_name


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


class Ranks:
    """The processes of a world, which make a step at a time."""

    def __init__(self, count, length):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        world = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        world |= {"OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1}
        command = [sys.executable, __file__, "--worker", "--length", str(length)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._processes = []
        for rank in range(count):
            variables = {name: str(value) for name, value in (world | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            self._processes.append(subprocess.Popen(command, env=os.environ | variables, **pipes))

    def step(self):
        """Of the rank with most: seconds, seconds of its processor, and kept bytes."""
        for process in self._processes:
            process.stdin.write("step\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self._processes]
        return [max(values) for values in zip(*answers, strict=True)]

    def end(self):
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            process.wait()


def work(length):
    answers, sys.stdout = sys.stdout, sys.stderr
    os.sched_setaffinity(0, {int(os.environ["RANK"]) % os.cpu_count()})
    import torch
    import transformers
    import zeroshard

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranks = int(os.environ["WORLD_SIZE"])
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8}
    sizes |= {"num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": length, "use_cache": False}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(attn_implementation="sdpa", **sizes))
    config = {"train_batch_size": 1, "sequence_parallel_size": ranks, "zero_optimization": {"stage": 2}}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3}}
    engine, *_ = zeroshard.initialize(model=model, config=config)
    ids = torch.randint(0, 4096, (1, length))
    batch = {"input_ids": ids, "labels": ids}
    if ranks > 1:
        batch = next(iter(zeroshard.sequence_parallel(engine, [batch])))
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    for _ in sys.stdin:
        kept = {}

        def keep(tensor, kept=kept):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        begin = (time.perf_counter(), time.process_time())
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        seconds = [time.perf_counter() - begin[0], time.process_time() - begin[1]]
        print(json.dumps([*seconds, sum(kept.values())]), file=answers, flush=True)


def main():
    options = parse_arguments()
    if options.worker:
        work(options.length)
        return
    worlds = {count: Ranks(count, options.length) for count in (1, options.ranks)}
    for world in worlds.values():
        world.step()  # not measured
    rounds = [{count: world.step() for count, world in worlds.items()} for _ in range(options.rounds)]
    for world in worlds.values():
        world.end()
    told = {"cpu": cpu_name(), "length": options.length, "rounds": options.rounds}
    for index, what in enumerate(["seconds", "processor seconds", "kept bytes"]):
        for count in worlds:
            told[f"{what} of {count} rank(s)"] = statistics.median(each[count][index] for each in rounds)
        told[f"ratio of {what}"] = statistics.median(each[options.ranks][index] / each[1][index] for each in rounds)
    for name, value in told.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(told | {"all": rounds}, file, indent=1)


if __name__ == "__main__":
    main()
