"""A loop over Accelerate with its DeepSpeed plugin: accumulates, clips, saves and loads; with one model or two.

Arguments: the stage, a folder, the names of cases. Tells what each case returns, on rank 0.
"""

import json
import os
import sys

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed
from transformers import LlamaConfig, LlamaForCausalLM

STAGE, FOLDER, CASES = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
ACCUMULATION = 2
SIZES = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2}
GENERATOR = torch.Generator().manual_seed(0)
DATA = torch.randint(0, 61, (32, 9), generator=GENERATOR)


def plugin():
    return DeepSpeedPlugin(zero_stage=STAGE, gradient_accumulation_steps=ACCUMULATION, gradient_clipping=0.5)


def tiny(seed):
    set_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.1, use_cache=False))


def prepared(accelerator, seed=0):
    """Of 4 samples in each micro-batch of all ranks together."""
    model = tiny(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9 ** (step / accelerator.num_processes))
    loader = torch.utils.data.DataLoader(DATA, batch_size=4 // accelerator.num_processes)
    return accelerator.prepare(model, optimizer, loader, scheduler)


def epoch(accelerator, model, optimizer, loader, scheduler):
    """The mean loss of each micro-batch, and what was seen at the end of each step."""
    losses, steps = [], []
    for ids in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, labels=ids).loss
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            norm = model.get_global_grad_norm() if norm is None else norm
            steps.append([float(norm), scheduler.get_last_lr()[0]])
    return losses, steps


def continues():
    """An epoch, and one after a checkpoint: going on, from the checkpoint, and from it with objects made anew."""
    accelerator = Accelerator(deepspeed_plugin=plugin())
    parts = prepared(accelerator)
    told = [epoch(accelerator, *parts)]
    accelerator.save_state(FOLDER)
    told.append(epoch(accelerator, *parts))
    accelerator.load_state(FOLDER)
    told.append(epoch(accelerator, *parts))
    accelerator.free_memory(*parts)
    parts = prepared(accelerator, seed=1)
    accelerator.load_state(FOLDER)
    told.append(epoch(accelerator, *parts))
    return told


def two_models():
    """Two models, each with a plugin and an Accelerator, in turns."""
    plugins = {"first": plugin(), "second": plugin()}
    first = Accelerator(deepspeed_plugins=plugins)
    parts = prepared(first)
    second = Accelerator()
    second.state.select_deepspeed_plugin("second")
    others = prepared(second, seed=1)
    return [epoch(*each) for _ in range(2) for each in ((first, *parts), (second, *others))]


for case in CASES:
    result = globals()[case]()
    if os.environ["RANK"] == "0":
        print("\nTOLD " + json.dumps([case, result]), flush=True)
    AcceleratorState._reset_state(reset_partial_state=True)
