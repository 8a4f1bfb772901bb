"""The configuration's learning-rate schedules, as a PyTorch-like scheduler."""

from __future__ import annotations

import inspect
from typing import Any

from . import _C
from .optimizer import Optimizer


def make_scheduler(lr_scheduler: Any, optimizer: Optimizer, config: _C.Config) -> Any:
    """The caller's scheduler, or what the caller's callable makes, or the configuration's, or None."""
    if lr_scheduler is not None:
        is_scheduler = hasattr(lr_scheduler, "step")
        return lr_scheduler if is_scheduler else lr_scheduler(optimizer.optimizer or optimizer)
    return LRScheduler(optimizer, config) if config.has_scheduler else None


def check_arguments_of(scheduler: Any, lr_kwargs: dict[str, Any]) -> None:
    """Raises ``ValueError`` if ``scheduler.step(**lr_kwargs)`` would lack an argument, or has one too many."""
    try:
        signature = inspect.signature(scheduler.step)
    except (TypeError, ValueError):  # of a function that does not tell its arguments
        return
    try:
        signature.bind(**lr_kwargs)
    except TypeError as error:
        raise ValueError(
            f"step() of the lr_scheduler {type(scheduler).__name__}: {error}. Pass its arguments, the same on every "
            f'rank, as engine.step(lr_kwargs={{"metrics": ...}}), or leave it out of zeroshard.initialize and step it '
            "yourself"
        ) from None


class LRScheduler:
    """Sets the learning rates of ``optimizer`` according to the configuration's ``scheduler`` block."""

    def __init__(self, optimizer: Optimizer, config: _C.Config) -> None:
        self.optimizer = optimizer
        self._schedule = config.lr_schedule([float(group["lr"]) for group in optimizer.param_groups])
        self.last_batch_iteration = -1
        self._last_lr = self._apply(self.last_batch_iteration)

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Moves to the next iteration, or to ``last_batch_iteration``."""
        if last_batch_iteration is None:
            last_batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = last_batch_iteration
        self._last_lr = self._apply(last_batch_iteration)

    def get_lr(self) -> list[float]:
        return self._schedule.lrs(self.last_batch_iteration)

    def get_last_lr(self) -> list[float]:
        """The rates that the last ``step()`` set, or those before the first one."""
        return self._last_lr

    def state_dict(self) -> dict[str, int]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.last_batch_iteration = state["last_batch_iteration"]
        self._last_lr = self._apply(self.last_batch_iteration)

    def _apply(self, iteration: int) -> list[float]:
        lrs = self._schedule.lrs(iteration)
        betas = self._schedule.betas(iteration)
        for group, lr in zip(self.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
            if betas is not None and "betas" in group:
                group["betas"] = betas
        return lrs
