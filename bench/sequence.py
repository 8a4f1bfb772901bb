#!/usr/bin/env python3
"""Times a step of one long row on one rank, and on ranks that share the row, with one core each.

    bench/setup_peers.sh  # once, for DeepSpeed's Ulysses
    bench/sequence.py [--length 2048] [--ranks 2] [--rounds 7] [--json FILE]

The processes live through the whole run and take turns, so that slow drifts of the machine hit all alike. Prints for
each world the seconds of a step, the seconds of its processor, which other load does not change, the bytes
that autograd keeps on a rank, and the ratios to one rank. Both libraries start with the same weights, and the losses of
their first steps are printed, too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from machine import cpu_name, free_port

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".venv-peers", "bin", "python")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--peers-python", default=PEER, help="a Python that has DeepSpeed; '' leaves DeepSpeed out")
    parser.add_argument("--worker", choices=["zeroshard", "deepspeed"], help=argparse.SUPPRESS)
    return parser.parse_args()


class Ranks:
    """The processes of a world, which make a step at a time."""

    def __init__(self, count, length, library="zeroshard", python=sys.executable):
        world = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        world |= {"OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1, "DS_ACCELERATOR": "cpu"}
        command = [python, __file__, "--worker", library, "--length", str(length)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._processes = []
        for rank in range(count):
            variables = {name: str(value) for name, value in (world | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            self._processes.append(subprocess.Popen(command, env=os.environ | variables, **pipes))

    def step(self):
        """Of the rank with most: seconds, seconds of its processor, kept bytes, loss."""
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


def make_model(length):
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8}
    sizes |= {"num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": length, "use_cache": False}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(attn_implementation="sdpa", **sizes))
    ids = torch.randint(0, 4096, (1, length))
    return model, {"input_ids": ids, "labels": ids}


def prepare_zeroshard(length, config):
    """The engine, and a function that returns the loss of the row."""
    import zeroshard

    model, batch = make_model(length)
    engine, *_ = zeroshard.initialize(model=model, config=config)
    if config["sequence_parallel_size"] > 1:
        batch = next(iter(zeroshard.sequence_parallel(engine, [batch])))
    return engine, lambda: engine(**batch).loss


def prepare_deepspeed(length, config):
    """As in DeepSpeed's tutorial of ALST."""
    import deepspeed
    import torch
    from deepspeed.runtime.sequence_parallel import ulysses_sp
    from deepspeed.utils import groups

    deepspeed.init_distributed(dist_backend="gloo")
    model, batch = make_model(length)
    mpu = ulysses_sp.UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model,
        core_attn_implementation="sdpa",
        sequence_parallel_size=config["sequence_parallel_size"],
        micro_batch_size=1,
        seq_length=length,
        seq_length_is_variable=True,
    )
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config, mpu=mpu)
    group, size = groups._get_sequence_parallel_group(), groups._get_sequence_parallel_world_size()
    rank = groups._get_sequence_parallel_rank()
    batch["position_ids"] = torch.arange(length)[None]
    loader = ulysses_sp.UlyssesSPDataLoaderAdapter(
        [batch], sp_rank=rank, sp_group=group, sp_world_size=size, device=torch.device("cpu")
    )
    batch = next(iter(loader))

    def loss():
        targets = batch["shift_labels"]
        logits = engine(**batch).logits
        own = model.loss_function(logits=logits, labels=None, shift_labels=targets, vocab_size=model.config.vocab_size)
        losses = torch.distributed.nn.functional.all_gather(own, group=group)
        counts = torch.distributed.nn.functional.all_gather((targets != -100).sum(), group=group)
        return sum(each * count for each, count in zip(losses, counts, strict=True)) / sum(counts)

    return engine, loss


def work(library, length):
    answers, sys.stdout = sys.stdout, sys.stderr
    os.sched_setaffinity(0, {int(os.environ["RANK"]) % os.cpu_count()})
    import torch

    torch.set_num_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    config = {"train_batch_size": 1, "sequence_parallel_size": ranks, "zero_optimization": {"stage": 2}}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    engine, loss_of = {"zeroshard": prepare_zeroshard, "deepspeed": prepare_deepspeed}[library](length, config)
    model = engine.module
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
            loss = loss_of()
        engine.backward(loss)
        engine.step()
        seconds = [time.perf_counter() - begin[0], time.process_time() - begin[1]]
        print(json.dumps([*seconds, sum(kept.values()), loss.item()]), file=answers, flush=True)


def main():
    options = parse_arguments()
    if options.worker:
        work(options.worker, options.length)
        return
    shared = f"{options.ranks} ranks"
    worlds = {"1 rank": Ranks(1, options.length), shared: Ranks(options.ranks, options.length)}
    if options.peers_python and os.path.exists(options.peers_python):
        peer = f"{options.ranks} ranks of DeepSpeed"
        worlds[peer] = Ranks(options.ranks, options.length, "deepspeed", options.peers_python)
    first = {name: world.step() for name, world in worlds.items()}  # not measured
    rounds = [{name: world.step() for name, world in worlds.items()} for _ in range(options.rounds)]
    for world in worlds.values():
        world.end()
    told = {"cpu": cpu_name(), "length": options.length, "rounds": options.rounds}
    for index, what in enumerate(["seconds", "processor seconds", "kept bytes"]):
        for name in worlds:
            told[f"{what} of {name}"] = statistics.median(each[name][index] for each in rounds)
        for name in [*worlds][1:]:
            ratio = statistics.median(each[name][index] / each["1 rank"][index] for each in rounds)
            told[f"ratio of {what}, {name}"] = ratio
    for name in worlds:
        told[f"first loss of {name}"] = first[name][3]
    for name, value in told.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(told | {"all": rounds}, file, indent=1)


if __name__ == "__main__":
    main()
