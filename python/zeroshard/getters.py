"""Defines the getters of an engine, and the setters of values that may change between steps."""

from __future__ import annotations

from typing import Any

import torch

from . import _C
from .run import Run
from .schedule import set_rate


class Getters:
    """The getters and setters of ``Engine``. Names and results are the same as in DeepSpeed's engine."""

    _run: Run
    _is_compiled: bool
    optimizer: Any
    config: Any

    def is_gradient_accumulation_boundary(self) -> bool:
        """Returns whether the current micro-batch is the last of its step.

        >>> if engine.is_gradient_accumulation_boundary():
        ...     print("the next step() updates the parameters")
        """
        return self._run.progress.is_boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Sets whether the current micro-batch and all later ones end their step, until the next call.

        The engine no longer counts micro-batches to decide this. Raises ``StateError`` with
        ``managed_gradient_accumulation`` false.

        >>> engine.set_gradient_accumulation_boundary(True)
        >>> engine.backward(engine(**batch).loss)
        >>> engine.step()
        """
        if not self._run.config.managed_accumulation:
            raise _C.StateError(
                "set_gradient_accumulation_boundary: with managed_gradient_accumulation false, every step() ends a "
                "step, and nothing else does"
            )
        self._run.progress.boundary = is_boundary

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Sets how many samples all ranks together take in each later step, by the number of micro-batches.

        Every rank must call it, between steps. ``micro_steps`` becomes the value that it would have if all steps had
        been of this size, as in ``load_checkpoint``. Raises ``ValueError`` if no number of micro-batches gives the
        size, and ``StateError`` within a step.

        >>> engine.set_train_batch_size(16)
        """
        self._run.core.set_train_batch_size(train_batch_size)

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Sets how many samples the caller's later micro-batches have, for the counts and ``train_batch_size``.

        Raises ``ValueError`` if ``initialize`` has made the loader, because that loader gives micro-batches of a fixed
        size.

        >>> engine, *_ = zeroshard.initialize(model=model, config=config)
        >>> engine.set_train_micro_batch_size(1)
        """
        if self._run.loader is not None:
            raise ValueError(
                f"the loader that zeroshard.initialize made gives micro-batches of {self._run.batch.micro}: pass no "
                "training_data there, and make a loader whose batch size you change with this"
            )
        self._run.core.set_micro_batch_size(micro_batch_size)

    @property
    def is_compiled(self) -> bool:
        return self._is_compiled

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns ``loss`` times the loss scale of fp16, for ``engine.scale(loss).backward()``.

        The backward pass divides the gradient of the loss by the number of accumulation steps.

        >>> engine.scale(engine(**batch).loss).backward()
        >>> engine.step()
        """
        return self._run.core.scale(loss)

    def get_global_grad_norm(self) -> float | None:
        """Returns the norm of the averaged gradients of the last applied step, before clipping. None: no such step yet.

        >>> engine.backward(engine(**batch).loss)
        >>> engine.step()
        >>> engine.get_global_grad_norm()
        """
        return self._run.applied_norm

    def get_lr(self) -> list[float]:
        return self._run.optimizer.rates()

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of every param group. The next step of a scheduler replaces this rate.

        >>> engine.set_lr(1e-5)
        """
        if not 0 <= lr < float("inf"):
            raise ValueError(f"set_lr: lr is {lr}, expected a number that is not negative")
        for group in self.optimizer.param_groups:
            set_rate(group, float(lr))

    def get_type(self) -> list[str]:
        """Returns a list with the name of the optimizer once per param group. The list is empty without an optimizer.

        >>> engine.get_type()
        """
        if not self._run.trains:
            return []
        inner = self.optimizer.optimizer
        name = type(inner).__name__ if inner is not None else self.config["optimizer"]["type"]
        return [name] * len(self.optimizer.param_groups)

    def get_mom(self) -> list[Any]:
        """Returns the betas of each param group, or the momentum for SGD and RMSprop; 0.0 for a group without them.

        >>> engine.get_mom()
        """
        name = "momentum" if self.optimizer.name in ("SGD", "RMSprop") else "betas"
        return [group.get(name, 0.0) for group in self.optimizer.param_groups]

    def was_step_applied(self) -> bool:
        return self._run.applied

    def rank(self) -> int:
        return self._run.rank

    def world_size(self) -> int:
        return self._run.world_size

    @property
    def local_rank(self) -> int:
        """Returns this rank's number among the ranks of its host."""
        return _C.rank_environment().local_rank

    def train_batch_size(self) -> int:
        return self._run.batch.train

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._run.batch.micro

    def gradient_accumulation_steps(self) -> int:
        return self._run.batch.accumulation
