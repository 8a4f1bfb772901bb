"""Implements ``deepspeed.initialize`` and its engine, with DeepSpeed's names, signatures and meanings."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .. import _C
from ..engine import Engine
from ..initialize import make_engine
from ..input_dtypes import DTYPES
from ..messages import log
from ..optimizer import OptimizerSetup
from ..passes import backward_pass
from ..pretrained import state_dict_of_rank_0
from . import checkpoint, generation
from . import zero as zero  # imported because it gives parameters ds_id, ds_status and other attributes
from .adalora import read_adapters
from .comm import init_distributed, start_alone
from .groups import _get_sequence_parallel_group
from .lightning import keep_states
from .optimizer import DeepSpeedOptimizer, make_front
from .trl_hash import gather_for_hashes


class DeepSpeedEngine(Engine):
    """Is ``deepspeed.DeepSpeedEngine``.

    Differs from zeroshard's own engine where a name means something else in DeepSpeed. ``save_checkpoint`` returns when
    the checkpoint is written, because callers then delete the previous checkpoint. With ``zeroshard.checkpoint.async:
    true`` in the configuration, it returns earlier, and a thread writes the checkpoint while training continues. Rank 0
    writes the script ``zero_to_fp32.py`` next to the checkpoint.
    """

    _checkpoints = checkpoint

    def __init__(
        self,
        module: nn.Module,
        parsed: _C.ParsedConfig,
        setup: OptimizerSetup,
        optimizer: DeepSpeedOptimizer,
        device: torch.device,
    ) -> None:
        super().__init__(module, parsed, setup, optimizer, device)
        optimizer.serve(self._run)
        keep_states()
        if self._run.config.stage == 3:
            generation.keep_gathered(self._run.core, self._value("zero_optimization.stage3_max_live_parameters"))
            read_adapters()
            gather_for_hashes()

    # -- training ----------------------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Does the same as zeroshard's own ``backward``, but returns ``loss`` divided by the accumulation steps.

        With ``scale_wrt_gas=False`` it returns ``loss`` itself.
        """
        super().backward(loss, retain_graph, scale_wrt_gas)
        return loss / self.gradient_accumulation_steps() if scale_wrt_gas else loss

    @contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        """Reduces the sum of the gradients of all backward passes in the context when the context ends.

        The context must end before ``step()``. Collective. Until the end each rank keeps its own gradients whole.
        Raises ``StateError`` inside ``no_sync()`` and inside another such context.
        """
        if not self._syncs:
            raise _C.StateError(
                "coalesce_grad_reduction() nested in no_sync(), or in itself: the outer context keeps gradients from "
                "being reduced"
            )
        with self.no_sync():
            yield
        if self._run.core.has_pending_gradients:
            with backward_pass(self._run.core, sync=True):
                pass  # this pass adds no gradients, and reduces the kept ones

    def loss_scale(self) -> float:
        return self._run.core.loss_scale

    def dynamic_loss_scale(self) -> bool:
        return self.fp16_enabled() and self._value("fp16.loss_scale") == 0

    def allreduce_gradients(self, bucket_size: int = 0) -> None:
        """Does nothing, because ``backward`` has already reduced the gradients."""

    def empty_partition_cache(self) -> None:
        """Does nothing, because resharding a unit frees its memory."""

    def offload_states(
        self,
        include: Container | None = None,
        device: Any = "cpu",
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """Does nothing on the CPU, because all states are in host memory already. Raises ``StateError`` on GPUs.

        Raises ``ValueError`` for another ``device`` than "cpu" and "none".
        """
        self._check_offload("offload_states", getattr(device, "value", device))

    def reload_states(self, non_blocking: bool = False) -> None:
        """Does nothing on the CPU, like ``offload_states``. Raises ``StateError`` on GPUs."""
        self._check_offload("reload_states", "cpu")

    def _check_offload(self, call: str, to: str) -> None:
        if to not in ("cpu", "none"):
            raise ValueError(f"{call}: the device is '{to}', and states can only be moved to 'cpu'")
        if self.device.type != "cpu":
            raise _C.StateError(
                f"{call}: zeroshard does not move the states of a living engine off {self.device}. To free the memory, "
                "save_checkpoint() and destroy() it; initialize() and load_checkpoint() continue"
            )

    def destroy(self) -> None:
        """Ends the engine as zeroshard's own ``destroy`` does. A second call does nothing."""
        had_ended = self._run.has_ended
        super().destroy()
        if not had_ended:
            self._run.end(
                "this engine was destroyed (engine.destroy(), which free_memory and end_training of Accelerate call): "
                "make another one with initialize. A Trainer keeps the engine of its first evaluate() or train(), and "
                "its train() destroys that one: to train once more, make a new Trainer of the same model"
            )

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike,
        tag: str | int | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
        *,
        rank_state: dict[str, Any] | None = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Continues from a checkpoint of zeroshard or DeepSpeed, of any number of ranks and any stage. Collective."""
        return super().load_checkpoint(
            load_dir,
            tag,
            load_module_strict,
            load_optimizer_states,
            load_lr_scheduler_states,
            load_module_only,
            custom_load_fn,
            rank_state=rank_state,
        )

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike,
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes the whole model as one safetensors file, whatever extension ``save_filename`` has. Collective.

        ``pytorch_model.bin`` becomes ``model.safetensors``, because transformers looks for that name. At stage 3, if
        ``stage3_gather_16bit_weights_on_model_save`` is false, returns False and writes nothing.
        """
        if self.zero_optimization_partition_weights() and not self.zero_gather_16bit_weights_on_model_save():
            if self._run.rank == 0:
                log("save_16bit_model wrote nothing: stage3_gather_16bit_weights_on_model_save is false")
            return False
        name = "model.safetensors" if save_filename == "pytorch_model.bin" else save_filename
        return super().save_16bit_model(save_dir, name, exclude_frozen_parameters)

    def save_fp16_model(self, save_dir: str | os.PathLike, save_filename: str = "pytorch_model.bin") -> bool:
        """Does the same as ``save_16bit_model``, which is its newer name."""
        return self.save_16bit_model(save_dir, save_filename)

    def module_state_dict(
        self,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """Returns the module's ``state_dict``. At stage 3 its parameters can only be read while they are gathered."""
        state = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if exclude_frozen_parameters:
            for name, param in self.module.named_parameters(remove_duplicate=False):
                if not param.requires_grad:
                    state.pop(prefix + name, None)
        return state

    def load_module_state_dict(
        self, checkpoint: dict[str, Any], strict: bool = True, custom_load_fn: Callable | None = None, **_: Any
    ) -> None:
        """Loads ``checkpoint["module"]`` into the module, with the values of rank 0. Collective.

        If there is a ``custom_load_fn``, only calls that.
        """
        if custom_load_fn is not None:
            custom_load_fn(src=checkpoint["module"], dst=self.module)
        else:
            self.module.load_state_dict(checkpoint["module"], strict=strict)

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any] | None:
        """Returns the ``state_dict`` on rank 0's CPU, gathered unit by unit, and None on other ranks. Collective."""
        try:
            return state_dict_of_rank_0(self._run, lambda p: p.requires_grad or not exclude_frozen_parameters)
        except ValueError as error:  # because Trainer takes a ValueError for "gathering is off"
            raise RuntimeError(f"the model's weights could not be collected: {error}") from error

    def _consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any] | None:
        """Does the same under the name that DeepSpeed has for tensor parallelism, at every stage."""
        return self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)

    # -- getters -----------------------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> DeepSpeedOptimizer | None:
        """The optimizer that users see, or None for an engine that only evaluates at stages 0 to 2."""
        return self._run.optimizer if self._run.trains or self._run.config.stage == 3 else None

    @property
    def world_size(self) -> int:
        return self._run.world_size

    seq_dp_world_size = world_size

    @property
    def dp_world_size(self) -> int:
        """Returns the number of ranks that have rows of their own. The ranks of a sequence group count as one."""
        return self._run.world_size // self.sequence_parallel_size

    data_parallel_world_size = dp_world_size

    @property
    def sequence_parallel_size(self) -> int:
        return self._run.config.sequence_parallel_size

    @property
    def mp_world_size(self) -> int:
        return 1

    @property
    def data_parallel_group(self) -> dist.ProcessGroup | None:
        """Returns the group of all ranks."""
        return dist.group.WORLD if dist.is_initialized() else None

    seq_data_parallel_group = data_parallel_group

    def get_data_parallel_rank(self) -> int:
        return self._run.rank // self.sequence_parallel_size

    def get_tensor_parallel_rank(self) -> int:
        return 0

    def get_model_parallel_rank(self) -> int:
        return 0

    def get_sequence_parallel_group(self) -> dist.ProcessGroup | None:
        """Returns the group of the ranks that train on the same rows as this rank."""
        return _get_sequence_parallel_group() if self.sequence_parallel_size > 1 else None

    def get_batch_info(self) -> tuple[int, int, int]:
        """Returns the samples of a step, the samples of a rank's micro-batch, and the micro-batches of a step."""
        return self.train_batch_size(), self.train_micro_batch_size_per_gpu(), self.gradient_accumulation_steps()

    def optimizer_name(self) -> str | None:
        """Returns the name of the configuration's optimizer in lower case, or None."""
        name = self._value("optimizer.type")
        return name.lower() if isinstance(name, str) else None

    def optimizer_params(self) -> dict[str, Any] | None:
        return self._value("optimizer.params")

    def scheduler_name(self) -> str | None:
        return self._value("scheduler.type")

    def scheduler_params(self) -> dict[str, Any] | None:
        return self._value("scheduler.params")

    def steps_per_print(self) -> Any:
        return self._value("steps_per_print")

    @property
    def global_rank(self) -> int:
        return self._run.rank

    def gradient_clipping(self) -> float:
        return self._run.config.gradient_clipping

    def zero_optimization_stage(self) -> int:
        return self._run.config.stage

    def zero_optimization(self) -> bool:
        return self._run.config.stage > 0

    def zero_optimization_partition_weights(self) -> bool:
        return self._run.config.stage == 3

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        return self._run.config.gather_16bit_weights_on_save

    def fp16_enabled(self) -> bool:
        return self._run.config.compute_dtype == "fp16"

    def bfloat16_enabled(self) -> bool:
        return self._run.config.compute_dtype == "bf16"

    def zero_allow_untested_optimizer(self) -> bool:
        return self._run.config.allow_untested_optimizer

    def zero_optimization_partition_gradients(self) -> bool:
        return self._run.config.stage >= 2

    def zero_overlap_comm(self) -> Any:
        return self._value("zero_optimization.overlap_comm")

    def zero_reduce_bucket_size(self) -> Any:
        return self._value("zero_optimization.reduce_bucket_size")

    def zero_prefetch_bucket_size(self) -> Any:
        return self._value("zero_optimization.stage3_prefetch_bucket_size")

    def zero_param_persistence_threshold(self) -> Any:
        return self._value("zero_optimization.stage3_param_persistence_threshold")

    def zero_offload_optimizer(self) -> dict[str, Any] | None:
        return self._value("zero_optimization.offload_optimizer")

    def zero_offload_param(self) -> dict[str, Any] | None:
        return self._value("zero_optimization.offload_param")

    def zero_cpu_offload(self) -> bool:
        """Returns whether optimizer states are on the host while a device computes. Returns False on the CPU."""
        asked = str(self._value("zero_optimization.offload_optimizer.device")).lower() == "cpu"
        asked = asked or self._value("zero_optimization.cpu_offload") == 1
        return self.device.type != "cpu" and self.zero_optimization() and asked

    def fp16_auto_cast(self) -> bool:
        return self._run.config.fp16_auto_cast

    def torch_autocast_enabled(self) -> bool:
        return self._run.config.autocast_dtype is not None

    def torch_autocast_dtype(self) -> torch.dtype | None:
        return DTYPES.get(self._run.config.autocast_dtype)

    def wall_clock_breakdown(self) -> bool:
        return self._run.config.wall_clock_breakdown

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        """Returns the dtypes of the parameters and of accumulated gradients."""
        sums = self._value("data_types.grad_accum_dtype")
        return DTYPES[self._run.config.compute_dtype], DTYPES.get(sums, torch.float32)

    def _value(self, path: str) -> Any:
        """Returns a value of the configuration, or None."""
        value: Any = self.config
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[[list], torch.optim.Optimizer] | None = None,
    model_parameters: Iterable | None = None,
    training_data: torch.utils.data.Dataset | None = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable | None = None,
    config: str | dict | os.PathLike | None = None,
    mesh_param: Any = None,
    config_params: str | dict | None = None,
) -> tuple[DeepSpeedEngine, DeepSpeedOptimizer | None, torch.utils.data.DataLoader | None, Any]:
    """Does the same as ``zeroshard.initialize``, but with DeepSpeed's engine and optimizer. Collective.

    Without a launcher it starts torch.distributed for one rank. ``dist_init_required=False`` raises ``StateError`` if
    torch.distributed is not started yet.
    """
    if dist_init_required is False:
        init_distributed(dist_init_required=False)  # raises if torch.distributed is not started
    else:
        start_alone(model)
    engine, loader, scheduler = make_engine(
        DeepSpeedEngine,
        make_front,
        args=args,
        model=model,
        optimizer=optimizer,
        model_parameters=model_parameters,
        training_data=training_data,
        lr_scheduler=lr_scheduler,
        distributed_port=distributed_port,
        mesh=mpu if mpu is not None else mesh_param,
        dist_init_required=dist_init_required,
        collate_fn=collate_fn,
        config=config if config is not None else config_params,
    )
    return engine, engine.optimizer, loader, scheduler
