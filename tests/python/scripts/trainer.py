"""An ordinary script for Transformers' Trainer. Tells the losses and gradient norms of the steps, and the last loss."""

import json
import os
import signal

import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments


class Killed(TrainerCallback):
    """Kills rank 1 after step KILLED, if the variable is set."""

    def on_step_end(self, args, state, control, **kwargs):
        if os.environ["RANK"] == "1" and str(state.global_step) == os.environ.get("KILLED"):
            os.kill(os.getpid(), signal.SIGKILL)


def with_adapters(kind):
    """The model with LoRA adapters; with "qlora", its own weights have 4 bits."""
    import peft
    from transformers import BitsAndBytesConfig

    bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4") if kind == "qlora" else None
    base = AutoModelForCausalLM.from_pretrained(os.environ["MODEL"], dtype=torch.float32, quantization_config=bits)
    if bits is not None:
        base = peft.prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    return peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", r=64, target_modules="all-linear"))


(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
if "ADAPTERS" in os.environ:
    torch.manual_seed(0)
    model = with_adapters(os.environ["ADAPTERS"])
else:
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL"], dtype=torch.float32)
generator = torch.Generator().manual_seed(0)
data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 61, (64, 12), generator=generator)]
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8], callbacks=[Killed()])
trainer.train(resume_from_checkpoint=os.environ.get("RESUME"))
last = trainer.evaluate()["eval_loss"]
trainer.save_model()
if trainer.is_world_process_zero():
    steps = [[entry["loss"], entry["grad_norm"]] for entry in trainer.state.log_history if "loss" in entry]
    print("\nTOLD " + json.dumps([*steps, [last, 0.0]]))
