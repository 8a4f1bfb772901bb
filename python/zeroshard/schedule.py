"""Defines learning-rate schedules with DeepSpeed's names, for any optimizer. The core computes the rates."""

from __future__ import annotations

import inspect
import json
from typing import Any

import torch

from . import _C
from .optimizer import Optimizer


def make_scheduler(lr_scheduler: Any, optimizer: Optimizer, config: _C.Config) -> Any:
    """Returns the caller's scheduler, the result of the caller's callable, the configuration's scheduler, or None."""
    if lr_scheduler is not None:
        is_scheduler = hasattr(lr_scheduler, "step")
        return lr_scheduler if is_scheduler else lr_scheduler(optimizer.optimizer or optimizer)
    return _CLASSES[config.scheduler_name].configured(optimizer, config) if config.has_scheduler else None


def check_arguments_of(scheduler: Any, lr_kwargs: dict[str, Any]) -> None:
    """Raises ``ValueError`` if a call ``scheduler.step(**lr_kwargs)`` lacks an argument or has one too many."""
    try:
        signature = inspect.signature(scheduler.step)
    except (TypeError, ValueError):  # some functions have no known signature
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
    """Sets the learning rates of ``optimizer``, and in ``OneCycle`` its betas, as a configuration's ``scheduler`` says.

    If a script holds a rate as a tensor, that tensor gets the new value.
    """

    _FIRST: tuple[str, ...] = ()  # names of the parameters that may be given by position

    def __init__(self, optimizer: Any, *values: Any, last_batch_iteration: int = -1, **params: Any) -> None:
        """Takes the ``params`` of the configuration's block ``scheduler``. Raises ``ConfigError`` for wrong values."""
        if len(values) > len(self._FIRST):
            raise TypeError(
                f"{type(self).__name__} takes {', '.join(self._FIRST)} by position, and the rest by name; got {values}"
            )
        params |= dict(zip(self._FIRST, values, strict=False))
        block = {"type": type(self).__name__, "params": params}
        parsed = _C.ParsedConfig.parse(json.dumps({"train_batch_size": 1, "scheduler": block}), world_size=1)
        self._begin(optimizer, parsed.config)
        if last_batch_iteration != -1:
            self.load_state_dict({"last_batch_iteration": last_batch_iteration})

    @classmethod
    def configured(cls, optimizer: Any, config: _C.Config) -> LRScheduler:
        scheduler = cls.__new__(cls)
        scheduler._begin(optimizer, config)
        return scheduler

    def _begin(self, optimizer: Any, config: _C.Config) -> None:
        self.optimizer = optimizer
        _own_rates(optimizer.param_groups)
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
        """Returns the rates that this scheduler has set last, for example in ``step()``."""
        return self._last_lr

    def state_dict(self) -> dict[str, int]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.last_batch_iteration = state["last_batch_iteration"]
        self._last_lr = self._apply(self.last_batch_iteration)

    def _apply(self, iteration: int) -> list[float]:
        lrs = self._schedule.lrs(iteration)
        for index, (group, lr) in enumerate(zip(self.optimizer.param_groups, lrs, strict=True)):
            set_rate(group, lr)
            betas = self._schedule.betas(iteration, index)
            if betas is not None and "betas" in group:
                group["betas"] = betas
        return lrs


def set_rate(group: dict[str, Any], lr: float) -> None:
    """Sets the learning rate of a param group. A rate that is a tensor stays the same tensor."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


def _own_rates(param_groups: list[dict[str, Any]]) -> None:
    """Gives each group a rate tensor of its own, because torch puts the same tensor into all groups of an optimizer."""
    seen = set()
    for group in param_groups:
        if isinstance(group["lr"], torch.Tensor) and id(group["lr"]) in seen:
            group["lr"] = group["lr"].clone()
        seen.add(id(group["lr"]))


class LRRangeTest(LRScheduler):
    """Increases the rate from step to step, so that one sees the largest rate with which training works."""

    _FIRST = (
        "lr_range_test_min_lr",
        "lr_range_test_step_size",
        "lr_range_test_step_rate",
        "lr_range_test_staircase",
    )


class OneCycle(LRScheduler):
    """Increases the rate, decreases it, and then decays it. Momentum moves in the other direction."""

    _FIRST = ("cycle_min_lr", "cycle_max_lr")

    def get_mom(self) -> list[tuple[float, float]] | None:
        """Returns the betas of each param group at this iteration, or None if the schedule changes no betas."""
        groups = self.optimizer.param_groups
        betas = [self._schedule.betas(self.last_batch_iteration, index) for index in range(len(groups))]
        cycles = betas[0] is not None and any("betas" in group for group in groups)
        return betas if cycles else None


class WarmupLR(LRScheduler):
    """Increases the rate to the largest one, and then keeps it."""

    _FIRST = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type")


class WarmupDecayLR(LRScheduler):
    """Increases the rate to the largest one, then decreases it linearly to 0."""

    _FIRST = ("total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type")


class WarmupCosineLR(LRScheduler):
    """Increases the rate to that of the optimizer, then decreases it along a cosine."""

    _FIRST = ("total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type")


_CLASSES = {kind.__name__: kind for kind in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR)}
