"""Prints the defaults of the installed DeepSpeed as JSON, by the name of a key in a configuration."""

import inspect
import json

import deepspeed
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import FusedAdam
from deepspeed.ops.lion import FusedLion
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig

found = {}


def note(prefix, defaults):
    for name, value in defaults.items():
        if value is None or isinstance(value, (bool, int, float, str, list, tuple)):
            found[prefix + name] = value


def of_model(model):
    fields = type(model).model_fields
    return {field.alias or name: getattr(model, name) for name, field in fields.items()}


def of_call(function):
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}


config = DeepSpeedConfig({"train_batch_size": 1})
sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")  # they follow from this
note("", {name: value for name, value in vars(config).items() if name not in sizes})
for block, model in {
    "fp16": config.float16_config,
    "bf16": config.bfloat16_config,
    "tensorboard": config.monitor_config.tensorboard,
    "csv_monitor": config.monitor_config.csv_monitor,
    "wandb": config.monitor_config.wandb,
    "zero_optimization": DeepSpeedZeroConfig(),
    "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig(),
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig(),
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig(),
}.items():
    note(block + ".", of_model(model))
note("aio.", config.aio_config)
note("data_types.", {name: vars(config)[name] for name in ("grad_accum_dtype", "param_dtype", "buffer_dtype")})
note("checkpoint.", config.checkpoint_config)
optimizers = {"Adam": FusedAdam, "AdamW": FusedAdam, "Adagrad": DeepSpeedCPUAdagrad, "Lion": FusedLion}
for name, optimizer in optimizers.items():
    note(f"{name}.optimizer.params.", of_call(optimizer))
for name in lr_schedules.VALID_LR_SCHEDULES:
    note(f"{name}.scheduler.params.", of_call(getattr(lr_schedules, name)))
print(json.dumps({"version": deepspeed.__version__.strip(), "defaults": found}))
