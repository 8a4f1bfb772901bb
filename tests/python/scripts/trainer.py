"""An ordinary script for Transformers' Trainer. Tells the losses and gradient norms of the steps, and the last loss."""

import json
import os

import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL"], dtype=torch.float32)
generator = torch.Generator().manual_seed(0)
data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 61, (64, 12), generator=generator)]
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
trainer.train(resume_from_checkpoint=os.environ.get("RESUME"))
last = trainer.evaluate()["eval_loss"]
trainer.save_model()
if trainer.is_world_process_zero():
    steps = [[entry["loss"], entry["grad_norm"]] for entry in trainer.state.log_history if "loss" in entry]
    print("\nTOLD " + json.dumps([*steps, [last, 0.0]]))
