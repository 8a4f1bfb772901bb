"""One rank of a plain training loop over the rows that `zeroshard train` reads, for bench/train.py.

    train_peer.py KIND CONFIG OUTPUT        KIND: eager, compile, fsdp2 or trainer

`trainer` is Hugging Face's, with DeepSpeed. CONFIG is zeroshard's. OUTPUT gets a JSON line per step: when, in
seconds since 1970, and the loss.
"""

import json
import os
import sys
import tempfile
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


class Rows(torch.utils.data.Dataset):
    def __init__(self, tokens, length, count):
        self.rows = torch.from_numpy(tokens[: count * length]).view(count, length)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def run_trainer(config, output):
    import deepspeed as library

    library.init_distributed("gloo", verbose=False)  # before the Trainer, which would take this for one rank
    train, world = config["train"], int(os.environ.get("WORLD_SIZE", 1))
    params, batch, steps = config["optimizer"]["params"], config["train_batch_size"], train["steps"]

    class Log(transformers.TrainerCallback):
        def __init__(self):
            self.file = open(output, "w")  # noqa: SIM115 (as long as the run)

        def on_log(self, arguments, state, control, logs=None, **others):
            if "loss" in (logs or {}):
                self.file.write(json.dumps({"time": time.time(), "loss": logs["loss"]}) + "\n")
                self.file.flush()

    zero = {"stage": config["zero_optimization"]["stage"]}
    deepspeed = {"zero_optimization": zero, "zero_allow_untested_optimizer": True, "gradient_clipping": "auto"}
    deepspeed |= {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            deepspeed=deepspeed,
            per_device_train_batch_size=batch // world,
            max_steps=steps,
            learning_rate=params["lr"],
            adam_beta1=params["betas"][0],
            adam_beta2=params["betas"][1],
            adam_epsilon=params["eps"],
            weight_decay=params["weight_decay"],
            lr_scheduler_type="constant",
            max_grad_norm=config["gradient_clipping"],
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(train["model"], dtype=torch.float32)
        rows = Rows(numpy.load(train["data"]["train"][0]).astype(numpy.int64), train["data"]["length"], steps * batch)
        transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Log()]).train()


def run_loop(kind, config, output):
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


def main():
    kind, config_file, output = sys.argv[1:]
    with open(config_file) as file:
        config = json.load(file)
    if kind == "trainer":
        run_trainer(config, output)
    else:
        run_loop(kind, config, output)


main()
