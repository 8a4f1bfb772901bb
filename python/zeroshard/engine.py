"""The engine: the user's module, sharded, with DeepSpeed's training methods."""

from __future__ import annotations

import faulthandler
import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from . import _C, checkpoint
from .batch import Batch, check_accumulation
from .buffers import find_buffers, named
from .compiling import check_arguments, compile_units
from .gathering import gathered, take_loaded_state_dicts
from .groups import make_groups
from .half_load import half_loaded, refuse_half_loaded
from .hooks import install_hooks
from .leaves import to_half
from .materialize import materialize
from .meeting import left_on_error
from .messages import announce, log
from .optimizer import Optimizer, OptimizerSetup
from .optimizer_states import describe_states, take_states
from .ownership import Ownership, destroy, drop_gradients, take_back, taking_over
from .parameter_check import ParameterCheck
from .step_progress import StepProgress
from .stopping import request_stop_on, save_last, wait_at_exit
from .units import Unit, find_units


class Engine(nn.Module):
    """Trains ``module`` with its states sharded over all ranks; made by ``zeroshard.initialize``.

    A step: ``loss = engine(...)``, ``engine.backward(loss)``, ``engine.step()``; ``step()`` updates once per
    ``gradient_accumulation_steps`` calls. Every rank makes the same calls in the same order.
    """

    def __init__(
        self,
        module: nn.Module,
        parsed: _C.ParsedConfig,
        setup: OptimizerSetup,
        optimizer: Optimizer,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.module = module
        self.device = device
        self._parsed = parsed
        self._config = parsed.config
        self._trains = setup.trains
        self._external = setup.inner if setup.external else None
        self._batch = Batch(self._config.micro_batch_size, self._config.grad_accumulation_steps, self.world_size())
        self._units = find_units(module, self._config.unit_classes)
        self.optimizer = optimizer
        with taking_over(module) as take_over:
            self._core = self._make_core(setup, take_over)
        self._parameter_check = ParameterCheck(module, self._units if self._trains else [])
        self._readers = install_hooks(module, self._units, self._core)
        self._readers.handles += take_loaded_state_dicts(module)
        self.optimizer.belong_to(self)
        self._ownership = Ownership(self)
        if self._external is not None:
            self._give_slices()
        take_states(self, setup)
        self.lr_scheduler: Any = None
        self.training_dataloader: Any = None
        self.micro_steps = 0
        self.global_steps = 0
        self.global_samples = 0
        self.skipped_steps = 0
        self._sync = True
        self._progress = StepProgress()
        self._warned_of_plain_backward = False
        self._boundary: bool | None = None
        self._grad_norm: float | None = None
        self._applied = False
        self._is_compiled = False
        self._stop = False
        self._last_save: Callable[[], None] | None = None
        announce(self)
        wait_at_exit(self)
        if "ZEROSHARD_HEARTBEAT_FD" in os.environ:  # `zeroshard run` asks hung ranks for their stacks
            faulthandler.register(_C.stack_dump_signal(), all_threads=True, chain=True)

    # -- construction ------------------------------------------------------------------------------------------------

    def _make_core(self, setup: OptimizerSetup, take_over: Callable[[], None]) -> _C.Engine:
        buffers = find_buffers(self.module, self.device, self._config.compute_dtype)
        left = half_loaded(self.module)

        def begin() -> None:
            refuse_half_loaded(left)
            take_over()
            for buffer in buffers:
                buffer.place()
            drop_gradients(self.module)

        options = _C.EngineOptions()
        options.config = self._config
        options.device = self.device
        options.optimizer = setup.type
        options.external_optimizer = type(setup.inner).__name__ if setup.external else ""
        options.agreement = [
            ("versions", _versions(self.module)),
            ("configuration", [(path, value) for path, value, _ in self._parsed.values]),
            ("states of the optimizer", describe_states(setup, self._units)),
            ("parameters that a failed load_checkpoint left of two checkpoints", left),
        ]
        options.buffers = named(buffers)
        options.param_groups = self.optimizer.options()
        definitions = []
        for unit in self._units:
            params = [
                _C.ParamDefinition(
                    names=param.names,
                    shape=list(param.tensors[0].shape),
                    dtype=param.tensors[0].dtype,
                    requires_grad=param.tensors[0].requires_grad and self._trains,
                    param_group=next((setup.group_of[id(t)] for t in param.tensors if id(t) in setup.group_of), -1),
                )
                for param in unit.params
            ]
            tensors = self._tensors_of(unit, None if definitions else begin)
            definitions.append(_C.UnitDefinition(unit.name, params, unit.parent, tensors))
        groups = make_groups(self._config.timeout_ms)
        meeting = groups.get("meeting")
        with left_on_error(meeting):
            try:
                return _C.Engine(definitions, options, **groups)
            except dist.DistError as error:
                if meeting is None:
                    raise
                meeting.explain(str(error))

    def _tensors_of(self, unit: Unit, begin: Callable[[], None] | None) -> Callable[[], list[list[torch.Tensor]]]:
        """What the core calls for each unit in turn, once all ranks have agreed."""

        def tensors() -> list[list[torch.Tensor]]:
            if begin is not None:
                begin()
            take_back(tensor for param in unit.params for tensor in param.tensors)
            materialize(self.module, unit, self.device)
            return [list(param.tensors) for param in unit.params]

        return tensors

    def _give_slices(self) -> None:
        """Hands an optimizer of the user's flat slices of the master weights instead of whole parameters."""
        for group in self._external.param_groups:
            group["params"] = []
        for part in self._core.slices():
            if part.param_group >= 0:
                self._external.param_groups[part.param_group]["params"].append(nn.Parameter(part.master))

    # -- training ----------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        training = torch.is_grad_enabled() and self.training
        if training:
            self._parameter_check.check_forward()
        self._core.begin_forward(training)
        self._readers.reset()
        if self._config.fp16_auto_cast:
            args, kwargs = pytree.tree_map(to_half, (args, kwargs))
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Computes and reduces gradients of ``loss``, divided by the accumulation steps unless told otherwise."""
        if not self._trains:
            raise _C.StateError("the engine has no optimizer: pass one, or name one in the configuration")
        scaled = self._core.scale_loss(loss, self.gradient_accumulation_steps() if scale_wrt_gas else 1)
        with self._progress.backward(self):
            scaled.backward(retain_graph=retain_graph)
        return loss

    def step(self, lr_kwargs: dict | None = None) -> None:
        """Updates the parameters when this micro-batch is the last of its step; else only counts it."""
        if not self._sync:
            raise _C.StateError("step() inside no_sync(): gradients of this rank alone must not be applied")
        if not self._trains:
            raise _C.StateError("the engine has no optimizer: pass one, or name one in the configuration")
        self._parameter_check.check()
        progress = self._progress
        if not progress.called_backward and not progress.had_gradients and self._core.has_pending_gradients:
            self._check_plain_backward()
        self._applied = False
        save_failed = False
        updates = self.is_gradient_accumulation_boundary()
        if updates:
            save_failed = self._take_step()
        progress.count(self, updates)
        if self._applied and self.lr_scheduler is not None:
            self.lr_scheduler.step(**(lr_kwargs or {}))
        if updates:
            self._print_step()
        if self._stop and self._last_save is not None:
            self._last_save()
            raise SystemExit(128 + signal.SIGTERM)
        if save_failed:  # late: the step was applied, and training may go on
            self._core.report_failed_save()

    def _check_plain_backward(self) -> None:
        """For gradients of a ``loss.backward()``, of a loss that ``backward(loss)`` has not scaled."""
        if self._core.loss_scale != 1:
            raise _C.StateError(
                f"loss.backward() was called on a loss without the loss scale, {self._core.loss_scale:g}: call "
                "engine.backward(loss)"
            )
        steps = self.gradient_accumulation_steps()
        if steps > 1 and not self._warned_of_plain_backward:
            self._warned_of_plain_backward = True
            log(
                f"warning: loss.backward() sums the gradients of {steps} micro-batches; engine.backward(loss) averages "
                "them, as the configuration's gradient_accumulation_steps means"
            )

    def _take_step(self) -> bool:
        """Returns whether a save in the background has failed."""
        if self._progress.unsynced:  # the last micro-batch was under no_sync: its gradients still have to travel
            with self._progress.backward(self):
                pass
        with self._progress.taking_back(self):
            if self._external is None:
                result = self._core.step(self.optimizer.options())
            else:
                result = self._core.prepare_step()
                if result.applied:
                    self._step_external()
                self._core.finish_step(result)
        self._grad_norm = result.grad_norm
        self._applied = result.applied
        self.optimizer.mark_step()
        self.optimizer.overflow = not result.applied
        self.optimizer.loss_scale = self._core.loss_scale
        self._stop = result.stop
        self.global_steps += 1
        self.skipped_steps += not result.applied
        return result.save_failed

    def _print_step(self) -> None:
        every = self._config.steps_per_print
        if every > 0 and self.global_steps % every == 0 and self.rank() == 0:
            log(
                f"step={self.global_steps}, skipped={self.skipped_steps}, lr={self.get_lr()}, "
                f"grad_norm={self._grad_norm:.4g}"
            )

    def _external_params(self) -> Iterator[tuple[_C.OptimizerSlice, nn.Parameter]]:
        """The stretches of parameters that the user's own optimizer updates on this rank, as it knows them."""
        if self._external is None:
            return
        params = [iter(group["params"]) for group in self._external.param_groups]
        for part in self._core.slices():
            if part.param_group >= 0:
                yield part, next(params[part.param_group])

    def _step_external(self) -> None:
        for part, param in self._external_params():
            param.grad = part.grad if part.has_grad else None
        self._external.step()
        for param in (param for group in self._external.param_groups for param in group["params"]):
            param.grad = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients computed inside stay on this rank, and join the reduction of the next backward outside."""
        previous, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = previous

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the current micro-batch is the last of its step."""
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """From now on the caller says which micro-batch ends a step."""
        self._boundary = is_boundary

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """From the next step on it takes as many micro-batches as make ``train_batch_size`` samples of all ranks.

        Every rank calls it, between steps. ``micro_steps`` becomes what it were had all steps been of that size, as in
        ``load_checkpoint``. Raises ``ValueError`` for what is no multiple of the micro-batches of all ranks.
        """
        batch = self._batch.with_train(train_batch_size)
        check_accumulation(self._parsed.config, batch.accumulation)
        if self._core.has_pending_gradients:
            raise _C.StateError(
                "set_train_batch_size within a step would average its micro-batches by two numbers: call it after the "
                "step() that updates"
            )
        self._batch = batch
        self.micro_steps = self.global_steps * batch.accumulation

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Says how many samples the caller's micro-batches have from now on: for counts, and ``train_batch_size``."""
        if self.training_dataloader is not None:
            raise ValueError(
                f"the loader that zeroshard.initialize made gives micro-batches of {self._batch.micro}: pass no "
                "training_data there, and make a loader whose batch size you change with this"
            )
        self._batch = self._batch.with_micro(micro_batch_size)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discards all gradients since the last update, and counts its micro-batches anew. Every rank calls it.

        ``step()`` clears what it has used: this is for batches that are not to count.
        """
        self._progress.zero_grad(self)

    def compile(
        self,
        backend: str | Callable = "inductor",
        compile_kwargs: dict[str, Any] | None = None,
        schedule: Any = None,
        compiled_autograd_enabled: bool = False,
    ) -> None:
        """Compiles the units by ``torch.compile(backend=backend, **compile_kwargs)``; a second call does nothing.

        A unit with others inside runs as before. ``schedule`` and ``compiled_autograd_enabled`` are for DeepSpeed's
        interface, and refused.
        """
        check_arguments(schedule, compiled_autograd_enabled)
        if not self._is_compiled:
            compile_units(self._units, backend, compile_kwargs or {})
            self._is_compiled = True

    @property
    def is_compiled(self) -> bool:
        return self._is_compiled

    def destroy(self) -> None:
        """Ends the engine: frees its states and hooks, and makes the module's parameters ordinary tensors, whole.

        Collective. Where stage 3 has sharded them and some rank lacks the memory for all, or while an exception is
        handled, they have no values afterwards. Raises ``IoError`` when the last checkpoint could not be written.
        """
        destroy(self)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike,
        tag: str | int | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Saves everything that training needs to go on, as ``save_dir/tag`` (``global_step<N>``). Collective.

        Any number of ranks at any stage can load it. Returns when the state is copied; it is written while training
        goes on, unless ``zeroshard.checkpoint.async`` is false, and an error is raised by a later ``step()``,
        ``save_checkpoint`` or ``wait_for_checkpoint()``. A process that ends waits for it.

        ``client_state`` may hold numbers, text, tensors, lists, tuples and dicts. Rank 0's is kept.
        """
        checkpoint.save(self, save_dir, tag, client_state, save_latest, exclude_frozen_parameters)
        return True

    def wait_for_checkpoint(self) -> bool:
        """Waits until the last checkpoint is written; raises ``IoError`` when it could not be.

        With ``zeroshard.checkpoint.on_error`` "warn" it logs that, and returns False.
        """
        return self._core.wait_for_checkpoint()

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike,
        tag: str | int | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
        strict: bool = False,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Goes on from a checkpoint, whatever number of ranks and stage wrote it. Collective.

        Without a tag the newest whole checkpoint is taken: a damaged one is passed over with a warning, or with
        ``strict`` raises ``IoError``. Returns the checkpoint's path and its ``client_state``; ``(None, None)`` when
        there is no checkpoint.
        """
        if custom_load_fn is not None:
            raise ValueError("load_checkpoint: custom_load_fn is not supported; load_module_strict=False loads a part")
        return checkpoint.load(
            self,
            load_dir,
            tag,
            load_module_strict,
            load_optimizer_states,
            load_lr_scheduler_states,
            load_module_only,
            strict,
        )

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike,
        save_filename: str = "model.safetensors",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes the whole model in the dtype it trains in as one safetensors file, unit by unit. Collective.

        A name that ends in ``.bin`` or ``.pt`` gets ``.safetensors`` instead: no pickle is written.
        """
        checkpoint.save_weights(self, save_dir, save_filename, exclude_frozen_parameters)
        return True

    def request_stop(self) -> None:
        """Lets ``stop_requested`` become true on every rank after the next ``step()``. For signal handlers."""
        self._core.request_stop()

    def save_and_stop_on(
        self,
        save_dir: str | os.PathLike,
        client_state: dict[str, Any] | Callable[[], dict[str, Any]] | None = None,
        signals: Iterable[signal.Signals] = (signal.SIGTERM,),
    ) -> None:
        """From now on a signal to any rank ends the run: all save after the same ``step()``, which exits with 143.

        Call it on every rank, in the main thread. A second signal ends the process at once. A ``client_state`` that is
        a function is called when it is needed.
        """

        self._last_save = lambda: save_last(self, save_dir, client_state)
        request_stop_on(self, signals)

    @property
    def stop_requested(self) -> bool:
        """Whether some rank asked, before the last step, for the run to end: the same on all ranks."""
        return self._stop

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, nested as in its JSON."""
        import json

        result: dict[str, Any] = {}
        for path, value, _ in self._parsed.values:
            *parents, name = path.split(".")
            where = result
            for parent in parents:
                where = where.setdefault(parent, {})
            try:
                where[name] = json.loads(value)
            except json.JSONDecodeError:
                where[name] = value
        return result

    def get_global_grad_norm(self) -> float | None:
        """The norm before clipping of the last step's averaged gradients; None before the first."""
        return self._grad_norm

    def get_lr(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of every param group; a scheduler sets its own again at the next step."""
        if not 0 <= lr < float("inf"):
            raise ValueError(f"set_lr: lr is {lr}, expected a number that is not negative")
        for group in self.optimizer.param_groups:
            group["lr"] = float(lr)

    def get_type(self) -> list[str]:
        """The name of the optimizer, once per param group; nothing without one."""
        if not self._trains:
            return []
        inner = self.optimizer.optimizer
        name = type(inner).__name__ if inner is not None else self.config["optimizer"]["type"]
        return [name] * len(self.optimizer.param_groups)

    def get_mom(self) -> list[Any]:
        """Of each param group the betas, or the momentum of SGD and RMSprop."""
        name = "momentum" if self.optimizer.name in ("SGD", "RMSprop") else "betas"
        return [group.get(name, 0.0) for group in self.optimizer.param_groups]

    def was_step_applied(self) -> bool:
        return self._applied

    @property
    def loss_scale(self) -> float:
        return self._core.loss_scale

    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    def world_size(self) -> int:
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def global_rank(self) -> int:
        return self.rank()

    @property
    def local_rank(self) -> int:
        """Among the ranks of this host."""
        return _C.rank_environment().local_rank

    def train_batch_size(self) -> int:
        return self._batch.train

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._batch.micro

    def gradient_accumulation_steps(self) -> int:
        return self._batch.accumulation

    def gradient_clipping(self) -> float:
        return self._config.gradient_clipping

    def zero_optimization_stage(self) -> int:
        return self._config.stage

    def zero_optimization(self) -> bool:
        return self._config.stage > 0

    def zero_optimization_partition_weights(self) -> bool:
        return self._config.stage == 3

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        return self._config.gather_16bit_weights_on_save

    def fp16_enabled(self) -> bool:
        return self._config.compute_dtype == "fp16"

    def bfloat16_enabled(self) -> bool:
        return self._config.compute_dtype == "bf16"

    def memory_report(self) -> dict[str, Any]:
        """Bytes of this rank: ``planned`` and ``measured_peak`` by category, and their totals.

        ``kept``: of freed CPU tensors that stay for the next step, at most what operators needed at once in the last.
        """
        lines = self._core.memory()
        planned = {name: plan for name, plan, _ in lines}
        measured = {name: peak for name, _, peak in lines}
        return {
            "planned": planned,
            "measured_peak": measured,
            "planned_total": sum(planned.values()),
            "measured_total": sum(measured.values()),
            "kept": self._core.kept_memory(),
        }

    def parameter_digest(self) -> str:
        """SHA-256 over names and values of all parameters, in the order of units: the same on every rank. Collective.

        It does not depend on stage, transport, overlap or prefetch.
        """
        digest = hashlib.sha256()
        for unit in self._units:
            tensors = [param.tensors[0] for param in unit.params]
            with gathered(tensors):
                for param in unit.params:
                    digest.update(param.names[0].encode())
                    digest.update(param.tensors[0].detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("module")
            if module is None:
                raise
            try:
                return getattr(module, name)
            except AttributeError as error:
                what = f"neither the engine nor its module ({type(module).__name__}) has the attribute '{name}'"
                raise AttributeError(what) from error


def _versions(module: nn.Module) -> list[tuple[str, str]]:
    """Of what decides about the numbers: zeroshard, torch and the packages that the model's modules are from."""
    packages = {type(child).__module__.partition(".")[0] for child in module.modules()}
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in packages}
    found |= {"zeroshard": _C.__version__, "torch": torch.__version__}
    return sorted((name, str(version)) for name, version in found.items() if isinstance(version, str))
