"""One rank of a plain training loop over the rows that `zeroshard train` reads, for bench/train.py.

    train_peer.py KIND CONFIG OUTPUT        KIND: eager, compile or fsdp2

CONFIG is zeroshard's; OUTPUT gets a JSON line per step: the time since 1970 and the loss.
"""

import json
import os
import sys
import time

import numpy
import torch
import transformers


def shard(model):
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def main():
    kind, config_file, output = sys.argv[1:]
    with open(config_file) as file:
        config = json.load(file)
    train = config["train"]
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    model = transformers.AutoModelForCausalLM.from_pretrained(train["model"], dtype=torch.float32)
    model.train()
    if kind == "fsdp2":
        shard(model)
    forward = torch.compile(model) if kind == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), **config["optimizer"]["params"])
    tokens = numpy.load(train["data"]["train"][0]).astype(numpy.int64)
    batch, length = config["train_batch_size"], train["data"]["length"]
    with open(output, "w") as log:
        for step in range(train["steps"]):
            begin = step * batch * length
            ids = torch.from_numpy(tokens[begin : begin + batch * length]).view(batch, length)
            targets = torch.from_numpy(tokens[begin + 1 : begin + batch * length + 1]).view(batch, length)
            mine = slice(rank * batch // world, (rank + 1) * batch // world)
            logits = forward(input_ids=ids[mine], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[mine].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config["gradient_clipping"])
            optimizer.step()
            optimizer.zero_grad()
            log.write(json.dumps({"time": time.time(), "loss": loss.item()}) + "\n")
            log.flush()


main()
