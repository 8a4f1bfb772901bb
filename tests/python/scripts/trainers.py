"""Ordinary scripts for Transformers' Trainer, one after another.

Arguments: a folder with saved models, the stage, the names of cases. Tells on rank 0 what each case returns. A stage of
-1 is without DeepSpeed.
"""

import contextlib
import json
import os
import sys

import torch
import transformers
from peft import AdaLoraConfig, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

FOLDER, STAGE, CASES = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
RANKS = int(os.environ.get("WORLD_SIZE", 1))


def samples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 61, (count, 12), generator=generator)]


def arguments(batch=4, **changes):
    """Of `batch` samples in each micro-batch of all ranks together."""
    auto = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto")
    zero = {"stage": STAGE, "stage3_gather_16bit_weights_on_model_save": True, "stage3_param_persistence_threshold": 0}
    options = {
        "output_dir": os.path.join(FOLDER, f"out-{RANKS}-{STAGE}"),
        "deepspeed": None if STAGE < 0 else {**auto, "bf16": {"enabled": "auto"}, "zero_optimization": zero},
        "per_device_train_batch_size": batch // RANKS,
        "per_device_eval_batch_size": 8 // RANKS,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "linear",
        "max_steps": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 1,
    }
    return TrainingArguments(**{**options, **changes})


def pretrained(name, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(os.path.join(FOLDER, name), dtype=dtype)


def steps_of(trainer):
    return [[entry["loss"], entry["grad_norm"]] for entry in trainer.state.log_history if "loss" in entry]


def trained(make, *callbacks, **changes):
    options = arguments(**changes)
    trainer = Trainer(model=make(), args=options, train_dataset=samples(40), eval_dataset=samples(16, seed=1))
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train()
    return trainer


def mixture():
    """Of experts; also which of the first layer each rank used in one more forward."""
    trainer = trained(lambda: pretrained("mixtral"), adam_epsilon=1e-4)
    used = []
    gate = trainer.accelerator.unwrap_model(trainer.model).model.layers[0].mlp.gate
    handle = gate.register_forward_hook(lambda _, __, output: used.extend(output[-1].unique().tolist()))
    rank = int(os.environ.get("RANK", 0))
    with torch.no_grad():
        trainer.model.eval()(input_ids=samples(RANKS)[rank]["input_ids"][None])
    handle.remove()
    everywhere = [used] * RANKS
    if RANKS > 1:
        torch.distributed.all_gather_object(everywhere, used)
    return [steps_of(trainer), everywhere]


def best():
    """Training gets worse after two steps; evaluate and predict see the best model."""

    class Worse(TrainerCallback):
        def on_step_end(self, args, state, control, optimizer=None, **_):
            if state.global_step >= 2:
                for group in optimizer.param_groups:
                    group["lr"] = 1.0

    trainer = trained(
        lambda: pretrained("llama"), Worse(), eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
        load_best_model_at_end=True, metric_for_best_model="eval_loss", greater_is_better=False, save_total_limit=2,
        lr_scheduler_type="constant",
    )  # fmt: skip
    seen = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    predicted = trainer.predict(samples(16, seed=2))
    first = [float(each) for each in predicted.predictions[0, 0, :4]]
    return [
        seen,
        trainer.evaluate()["eval_loss"],
        predicted.metrics["test_loss"],
        first,
        list(predicted.predictions.shape),
    ]


def lora_bf16():
    """The base in bf16, the adapters in fp32; also their dtypes after training."""

    def make():
        set_seed(3)
        config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
        return get_peft_model(pretrained("llama", torch.bfloat16), config)

    trainer = trained(make)
    dtypes = {name: str(p.dtype) for name, p in trainer.accelerator.unwrap_model(trainer.model).named_parameters()}
    return [steps_of(trainer), sorted({dtype for name, dtype in dtypes.items() if "lora" in name}),
            sorted({dtype for name, dtype in dtypes.items() if "lora" not in name})]  # fmt: skip


def accumulates(batch=4, accumulation=4):
    """Two epochs whose last window is shorter: of 40 samples, 16 in a step."""
    trainer = trained(
        lambda: pretrained("llama"), batch=batch, gradient_accumulation_steps=accumulation, max_steps=-1,
        num_train_epochs=2, max_grad_norm=0.5,
    )  # fmt: skip
    return steps_of(trainer)


def whole_batches():
    """The same without accumulation."""
    return accumulates(16, 1)


def gathered(params):
    if STAGE != 3:
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(params)


ADALORA = {
    "init_r": 4, "target_r": 2, "tinit": 1, "tfinal": 1, "deltaT": 1, "total_step": 6, "orth_reg_weight": 0.1,
    "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM",
}  # fmt: skip
OF_A_TEACHER = {**ADALORA, "inference_mode": True}


def adalora(bf16=False):
    """Reads gradients after each step, and takes ranks away."""

    class Update(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model=None, **_):
            model.base_model.update_and_allocate(state.global_step)

    def make():
        set_seed(3)
        return get_peft_model(pretrained("llama"), AdaLoraConfig(**ADALORA))

    trainer = trained(make, Update(), max_steps=6, average_tokens_across_devices=False, bf16=bf16)
    teacher = get_peft_model(type(trainer.model.base_model.model)(trainer.model.config), AdaLoraConfig(**OF_A_TEACHER))
    assert torch.isfinite(teacher(torch.ones(1, 4, dtype=torch.int64)).logits).all()
    pattern = trainer.accelerator.unwrap_model(trainer.model).peft_config["default"].rank_pattern
    masks = [param for name, param in trainer.model.named_parameters() if "lora_E" in name]
    with gathered(masks):
        zeros = [int((param == 0).sum()) for param in masks]
    return [steps_of(trainer), sorted([name, sum(kept)] for name, kept in (pattern or {}).items()), zeros]


def adalora_bf16():
    return adalora(bf16=True)


transformers.logging.set_verbosity_error()
for case in CASES:
    result = globals()[case]()
    if os.environ.get("RANK", "0") == "0":
        print("\nTOLD " + json.dumps([case, result]), flush=True)
