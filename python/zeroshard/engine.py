"""Defines the engine, which trains the user's module with sharded parameters and states."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn

from . import _C, checkpoint
from .announce import announce, memory_report
from .compiling import check_arguments, compile_units
from .gathering import gathered
from .getters import Getters
from .input_dtypes import autocast, cast_floats, explain_dtypes
from .making import make_run
from .marks import refuse_to_pickle
from .optimizer import Optimizer, OptimizerSetup
from .ownership import destroy
from .passes import backward_pass
from .pretrained import save_pretrained
from .schedule import check_arguments_of
from .sequence_model import tell_failed_backward
from .step_report import StepReport
from .stopping import ask_for, request_stop_on, save_last, wait_at_exit


def _of_run(name: str, doc: str) -> property:
    def read(engine: Engine) -> Any:
        return getattr(engine._run, name)

    def write(engine: Engine, value: Any) -> None:
        setattr(engine._run, name, value)

    def delete(engine: Engine) -> None:
        setattr(engine._run, name, None)

    return property(read, write, delete, doc=doc)


class Engine(Getters, nn.Module):
    """Trains ``module`` with its states sharded over all ranks. ``zeroshard.initialize`` makes an engine.

    A step is ``loss = engine(...)``, ``engine.backward(loss)``, ``engine.step()``. The last of every
    ``gradient_accumulation_steps`` calls of ``step()`` updates the parameters. Every rank must make the same calls in
    the same order.

    >>> for batch in loader:
    ...     loss = engine(**batch).loss
    ...     engine.backward(loss)
    ...     engine.step()
    """

    _checkpoints = checkpoint  # the module that saves and loads

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
        self._run, self._readers, self._ownership = make_run(module, parsed, setup, optimizer, device)
        self._run.optimizer.belong_to(self)
        self._syncs = True  # False inside no_sync
        self._has_new_gradients = False  # true: gradients have arrived since the last step()
        self._is_compiled = False
        self._last_save: Callable[[], None] | None = None
        self._report = StepReport(self._run)
        self._run.at_end.append(self._report.finish)
        announce(self._run)
        wait_at_exit(self._run)
        if "ZEROSHARD_HEARTBEAT_FD" in os.environ:  # `zeroshard run` requests stack traces of hung ranks
            faulthandler.register(_C.stack_dump_signal(), all_threads=True, chain=True)

    # -- training ----------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        training = torch.is_grad_enabled() and self.training
        if training:
            self._run.parameter_check.check_forward()
        self._run.core.begin_forward(training)
        self._readers.reset()
        if training:
            self._report.note_inputs(args, kwargs)
        if self._run.config.auto_cast:
            args, kwargs = cast_floats((args, kwargs), self._run.config.compute_dtype)
        keeper = self._run.keeper
        try:
            with (
                self._report.part("forward") if training else nullcontext(),
                keeper.in_forward() if training and keeper is not None else nullcontext(),
                autocast(self._run.config, self._run.device),
            ):
                return self.module(*args, **kwargs)
        except RuntimeError as error:
            explain_dtypes(error, self._run.config)
            raise

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Computes the gradients of ``loss`` and, outside of ``no_sync``, reduces them. Returns ``loss``.

        Before the backward pass, multiplies the loss by the loss scale of fp16. Unless ``scale_wrt_gas`` is False, also
        divides it by the number of accumulation steps. The returned loss has its original value. Raises ``StateError``
        without an optimizer.

        >>> loss = engine(**batch).loss
        >>> engine.backward(loss)
        """
        if not self._run.trains:
            raise _C.StateError("the engine has no optimizer: pass one, or name one in the configuration")
        core = self._run.core
        if not self._run.config.managed_accumulation and core.has_pending_gradients:
            core.end_micro_batch()  # no step() has ended the previous micro-batch
        self._report.note_loss(self._run, loss)
        scaled = core.scale_loss(loss) if scale_wrt_gas else core.scale_loss(loss, micro_batches=1)
        self._has_new_gradients = True
        end_waits = partial(tell_failed_backward, self.module)
        with self._report.part("backward"), backward_pass(core, self._syncs, end_waits):
            scaled.backward(retain_graph=retain_graph)
        return loss

    def step(self, lr_kwargs: dict | None = None) -> None:
        """Updates the parameters if this micro-batch is the last of its step. Otherwise only counts the micro-batch.

        After an update that was applied, calls ``lr_scheduler.step(**lr_kwargs)``. If some rank has requested a stop,
        and ``save_and_stop_on`` was called, then saves a checkpoint and raises ``SystemExit``.

        >>> engine.backward(engine(**batch).loss)
        >>> engine.step()
        """
        self._check_step()
        # Calls the method, because a script can have replaced it.
        updates, scheduler = self.is_gradient_accumulation_boundary(), self._run.lr_scheduler
        if updates and scheduler is not None:  # checked before the update, because an update cannot be undone
            check_arguments_of(scheduler, lr_kwargs or {})
        self._end_micro_batch(updates, scheduler, lr_kwargs or {})

    def _update(self) -> None:
        """Does the work of ``optimizer.step()``: updates the parameters with all gradients since the last update.

        Does nothing if there was no backward pass since the last ``step()``. Does not step the engine's scheduler. The
        next ``engine.step()`` counts the first micro-batch of a new step.
        """
        self._check_step()
        core, progress = self._run.core, self._run.progress
        if core.has_pending_gradients and (self._has_new_gradients or core.has_plain_gradients):
            self._end_micro_batch(True, None, {})
            progress.micro_steps += -progress.micro_steps % progress.batch.accumulation

    def _check_step(self) -> None:
        if not self._syncs:
            raise _C.StateError("step() inside no_sync(): gradients of this rank alone must not be applied")
        if not self._run.trains:
            raise _C.StateError("the engine has no optimizer: pass one, or name one in the configuration")
        self._run.parameter_check.check()

    def _end_micro_batch(self, updates: bool, lr_scheduler: Any, lr_kwargs: dict) -> None:
        run = self._run
        run.applied = self._has_new_gradients = False
        save_failed = False
        with self._report.part("step"):
            if updates:
                save_failed = self._take_step()
                run.position.end_step()
            else:
                run.core.end_micro_batch()
        if run.applied and lr_scheduler is not None:
            lr_scheduler.step(**lr_kwargs)
        if updates:
            self._report.end_step(run)
        if run.stop and self._last_save is not None:
            self._last_save()
            raise SystemExit(128 + signal.SIGTERM)
        if save_failed:  # raised only after the step, because the step was applied and training can continue
            run.core.report_failed_save()

    def _take_step(self) -> bool:
        """Takes one step. Returns whether a background save has failed."""
        run = self._run
        if run.external is None:
            run.optimizer.begin_update()
            result = run.core.step(run.optimizer.options())
        else:
            result = run.core.prepare_step(run.optimizer.outside_rates())
            if result.applied:
                self._step_external()
            run.core.finish_step(result)
        run.grad_norm = result.grad_norm
        run.applied = result.applied
        run.applied_norm = result.grad_norm if result.applied else run.applied_norm
        run.optimizer.mark_step()
        run.optimizer.overflow = not result.applied
        run.optimizer.loss_scale = run.core.loss_scale
        run.stop = result.stop
        if result.applied and run.external is None:
            run.optimizer.end_update()
        return result.save_failed

    def _step_external(self) -> None:
        for part, param in self._run.external_params():
            param.grad = part.grad if part.has_grad else None
        is_first = not self._run.external.state
        self._ownership.step_of_user()
        if is_first:
            checkpoint.warn_of_states(self._run)
        for param in (param for group in self._run.external.param_groups for param in group["params"]):
            param.grad = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Makes backward passes inside keep gradients on this rank.

        The next backward pass outside, or else the step, reduces these gradients, too.

        >>> with engine.no_sync():
        ...     engine.backward(engine(**batch).loss)
        >>> engine.backward(engine(**batch).loss)  # reduces the sum of both
        >>> engine.step()
        """
        previous, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = previous

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discards all gradients since the last update, and their micro-batches no longer count. Collective.

        Scripts need it only for batches that must not count, because ``step()`` itself clears the gradients that it has
        used.

        >>> engine.backward(engine(**batch).loss)
        >>> engine.zero_grad()
        """
        drops = self._run.is_within_step
        self._run.core.zero_grad()
        # Between steps no micro-batch is discarded. The loader can already have given the first batch of the next step,
        # and end_step() would count that batch as used.
        if drops:
            self._run.position.end_step()

    def compile(
        self,
        backend: str | Callable = "inductor",
        compile_kwargs: dict[str, Any] | None = None,
        schedule: Any = None,
        compiled_autograd_enabled: bool = False,
    ) -> None:
        """Compiles the units with ``torch.compile(backend=backend, **compile_kwargs)``. A second call does nothing.

        Does not compile a unit that contains other units. ``schedule`` and ``compiled_autograd_enabled`` exist because
        DeepSpeed has them. Other values than their defaults raise ``ValueError``. Raises ``StateError`` with
        ``zeroshard.offload.activations``.

        >>> engine.compile()
        """
        check_arguments(schedule, compiled_autograd_enabled)
        if self._run.keeper is not None:
            raise _C.StateError(
                "compile(): zeroshard.offload.activations moves what compiled units keep themselves: set it "
                'to "none", or leave compile() out'
            )
        if not self._is_compiled:
            compile_units(self._run.units, backend, compile_kwargs or {})
            self._is_compiled = True

    def destroy(self) -> None:
        """Ends the engine: frees its states, removes its hooks, and turns the parameters into whole, ordinary tensors.

        Collective, except while an exception is handled. In that case, or if some rank does not have the memory for all
        parameters, or if ranks cannot reach one another, parameters that stage 3 has sharded lose their values. Raises
        ``IoError`` if the last checkpoint could not be written. A second call does nothing.

        >>> engine.destroy()
        >>> weights = model.state_dict()
        """
        destroy(self._run, self._ownership)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike,
        tag: str | int | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
        *,
        rank_state: dict[str, Any] | None = None,
    ) -> bool:
        """Saves everything that training needs to continue. Collective.

        The checkpoint is the folder ``save_dir/tag``, by default ``save_dir/global_step<N>``. Any number of ranks at
        any stage can load it. By default the call returns when it has copied the state, and a thread writes the copy
        while training continues. If the thread fails, a later ``step()``, ``save_checkpoint`` or
        ``wait_for_checkpoint()`` raises its error. A process that ends waits for the thread. If
        ``zeroshard.checkpoint.async`` is false, or if there is no memory for the copy, the call returns when the
        checkpoint is written.

        ``client_state`` may contain numbers, text, tensors, lists, tuples and dicts. The checkpoint contains rank 0's
        ``client_state``. ``rank_state`` may contain such values, too, for example a rank's averages of its own shards.
        The checkpoint contains the ``rank_state`` of every rank.

        >>> engine.save_checkpoint("checkpoints", client_state={"epoch": 3})
        """
        self._checkpoints.save(
            self._run,
            save_dir,
            tag,
            client_state,
            save_latest,
            exclude_frozen_parameters,
            rank_state=rank_state,
        )
        return True

    def wait_for_checkpoint(self) -> bool:
        """Waits until the last checkpoint is written. Raises ``IoError`` if the write has failed.

        If ``zeroshard.checkpoint.on_error`` is "warn", the call logs the error instead and returns False.

        >>> engine.save_checkpoint("checkpoints")
        >>> engine.wait_for_checkpoint()
        """
        return self._run.core.wait_for_checkpoint()

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
        *,
        rank_state: dict[str, Any] | None = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Continues from a checkpoint, which any number of ranks at any stage can have written. Collective.

        Without a tag the call loads the newest whole checkpoint. It skips a damaged checkpoint with a warning, or
        raises ``IoError`` with ``strict``. Returns the checkpoint's path and its ``client_state``, or ``(None, None)``
        if there is no checkpoint. Puts the ``rank_state`` that this rank has saved into the dict ``rank_state``. If
        that argument is given but the checkpoint has no ``rank_state``, or one of another number of ranks, raises
        ``ValueError`` and loads nothing.

        >>> path, client_state = engine.load_checkpoint("checkpoints")
        """
        if custom_load_fn is not None:
            raise ValueError("load_checkpoint: custom_load_fn is not supported; load_module_strict=False loads a part")
        loaded = self._checkpoints.load(
            self._run,
            load_dir,
            tag,
            load_module_strict,
            load_optimizer_states,
            load_lr_scheduler_states,
            load_module_only,
            strict,
            rank_state,
        )
        self._report.restart(self._run)
        return loaded

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike,
        save_filename: str = "model.safetensors",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes the whole model as one safetensors file in its training dtype, one unit after another. Collective.

        A name that ends in ``.bin``, ``.pt`` or ``.pth`` gets ``.safetensors`` instead, because zeroshard writes no
        pickle. For a model of transformers the call also writes config.json and generation_config.json, unless the
        directory has them.

        >>> engine.save_16bit_model("trained")
        """
        checkpoint.save_weights(self._run, save_dir, save_filename, exclude_frozen_parameters)
        return True

    def save_pretrained(self, save_dir: str | os.PathLike, tokenizer: Any = None, **options: Any) -> None:
        """Writes the model as a directory that ``from_pretrained`` reads. Collective.

        The model must be of transformers, diffusers or PEFT. For a model of PEFT the call writes only the adapters, in
        PEFT's format. Rank 0 calls the model's own ``save_pretrained`` with the gathered weights, in their training
        dtype, and with ``options`` such as ``max_shard_size``. Rank 0 needs host memory for the weights that it writes.
        The files of the tokenizer come from ``tokenizer`` or, without it, from the directory from which the model was
        loaded. Raises ``ValueError`` for other modules.

        >>> engine.save_pretrained("trained")
        """
        save_pretrained(self._run, save_dir, tokenizer, options)

    def request_stop(self) -> None:
        """Makes ``stop_requested`` true on every rank after the next ``step()``. A signal handler may call it.

        >>> engine.request_stop()
        >>> engine.backward(engine(**batch).loss)
        >>> engine.step()
        >>> if engine.stop_requested:
        ...     engine.save_checkpoint("checkpoints")
        """
        self._run.core.request_stop()

    def save_and_stop_on(
        self,
        save_dir: str | os.PathLike,
        client_state: dict[str, Any] | Callable[[], dict[str, Any]] | None = None,
        signals: Iterable[signal.Signals] = (signal.SIGTERM,),
        rank_state: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """Makes a signal to any rank end the run: all ranks save after the same ``step()`` and exit with code 143.

        Every rank must call it, in its main thread, before its loaders start workers, because only workers that start
        later survive the signal. A second signal, two seconds later or more, has its former effect, which normally ends
        the process at once. The save calls ``rank_state``, and ``client_state`` if that is a function. If one of them
        raises on any rank, or returns a value that cannot be saved, rank 0 logs the reason, and the checkpoint is saved
        without that value.

        >>> engine.save_and_stop_on("checkpoints", client_state={"epoch": 3})
        """

        def save() -> None:
            client, own = client_state, None
            if callable(client_state):
                client = ask_for(self._run, "client_state", client_state)
            if rank_state is not None:
                own = ask_for(self._run, "rank_state", rank_state)
            self.save_checkpoint(save_dir, client_state=client, rank_state=own)

        self._last_save = lambda: save_last(self._run, save_dir, save)
        request_stop_on(self._run, signals)

    @property
    def stop_requested(self) -> bool:
        """Whether some rank had requested the end of the run before the last step. The same on all ranks."""
        return self._run.stop

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, as a dict that is nested like the JSON of a configuration file."""
        result: dict[str, Any] = {}
        for path, value, _ in self._run.parsed.values:
            *parents, name = path.split(".")
            where = result
            for parent in parents:
                where = where.setdefault(parent, {})
            try:
                where[name] = json.loads(value)
            except json.JSONDecodeError:
                where[name] = value
        return result

    device = _of_run("device", "The device on which the module computes.")
    optimizer = _of_run("optimizer", "The optimizer, whose states are sharded. Schedulers change its ``param_groups``.")
    lr_scheduler = _of_run(
        "lr_scheduler", "The scheduler. The engine steps it at each update, and checkpoints contain it."
    )
    training_dataloader = _of_run(
        "loader", "The loader that ``initialize`` has made. Checkpoints contain its position."
    )
    global_steps = _of_run("global_steps", "The number of updates so far, including skipped ones.")
    skipped_steps = _of_run(
        "skipped_steps", "The number of updates that were skipped because gradients were not finite."
    )
    micro_steps = _of_run("micro_steps", "The number of micro-batches so far.")
    global_samples = _of_run("global_samples", "The number of samples of all ranks so far.")

    @property
    def loss_scale(self) -> float:
        return self._run.core.loss_scale

    def memory_report(self) -> dict[str, Any]:
        """Returns the bytes of this rank: ``planned`` and ``measured_peak`` by category, and their totals.

        ``tiers`` has the same totals by where the bytes lie: ``"device"``, ``"host"`` or ``"file"``. On the CPU the
        device's memory is the host's memory, and ``"host"`` counts only copies for checkpoints. ``kept`` has the bytes
        of freed CPU tensors that the process keeps for the next step. Kept and used bytes together never exceed the
        largest amount that was in use at one time in this step and the last.

        >>> engine.memory_report()["measured_peak"]
        """
        return memory_report(self._run.core)

    def parameter_digest(self) -> str:
        """Returns the SHA-256 over names and values of all parameters, which is the same on every rank. Collective.

        The digest does not depend on stage, transport, overlap or prefetch.

        >>> engine.parameter_digest()
        """
        digest = hashlib.sha256()
        for unit in self._run.units:
            tensors = [param.tensors[0] for param in unit.params]
            with gathered(tensors):
                for param in unit.params:
                    digest.update(param.names[0].encode())
                    digest.update(param.tensors[0].detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_to_pickle()

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(type(self), name, None), property):  # nn.Module would register a module as a submodule
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

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
