"""Has the state of one engine. The code that trains, saves, loads and ends the engine shares this state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from . import _C
from .activations import Keeper
from .optimizer import Optimizer
from .parameter_check import ParameterCheck
from .units import Unit


class Ended:
    """Replaces the parts of an engine that has ended. Any use raises a ``StateError`` that says why."""

    def __init__(self, why: str) -> None:
        self.__dict__["why"] = why

    def __getattr__(self, name: str) -> NoReturn:
        raise _C.StateError(self.__dict__["why"])

    def __iter__(self) -> Iterator[Any]:
        raise _C.StateError(self.__dict__["why"])


def _count(name: str) -> property:
    def read(run: Run) -> int:
        return getattr(run.progress, name)

    def write(run: Run, value: int) -> None:
        setattr(run.progress, name, value)

    return property(read, write)


def state_of(thing: Any) -> Any:
    """Returns the ``state_dict`` of a scheduler or a loader, or None if it has none."""
    return thing.state_dict() if hasattr(thing, "state_dict") else None


class Position:
    """A data loader, and the state that it had at the end of the last step, where the current step begins."""

    def __init__(self) -> None:
        self._loader: Any = None
        self.at_last_step: Any = None

    @property
    def loader(self) -> Any:
        return self._loader

    @loader.setter
    def loader(self, loader: Any) -> None:
        self._loader = loader
        self.end_step()

    def now(self) -> Any:
        """Returns the loader's present state, or None for a loader without ``state_dict``."""
        return state_of(self._loader)

    def end_step(self) -> None:
        """Records that all batches so far belong to earlier steps."""
        self.at_last_step = copy.deepcopy(self.now())


@dataclass
class Run:
    """Has the parts of one engine. ``core`` does the work. Checkpoints, schedulers and getters use the other parts."""

    module: nn.Module
    device: torch.device
    parsed: _C.ParsedConfig
    units: list[Unit] | Ended
    core: _C.Engine | Ended
    optimizer: Optimizer
    trains: bool  # False: the engine can only evaluate
    external: torch.optim.Optimizer | None  # the user's own optimizer if it updates slices of parameters itself
    parameter_check: ParameterCheck | Ended
    keeper: Keeper | None = None  # None: activation checkpoints stay in memory
    lr_scheduler: Any = None
    position: Position = field(default_factory=Position)  # position of the run in the data
    applied: bool = False  # true: the last step was applied
    grad_norm: float | None = None  # norm of the last step: NaN if it was skipped
    applied_norm: float | None = None  # norm of the last step that was applied
    stop: bool = False  # true: a rank has requested the end of the run
    last_progress: _C.Progress | None = None  # progress of a core that has ended
    at_end: list[Callable[[], None]] = field(default_factory=list)  # called when the engine ends

    global_steps = _count("global_steps")
    skipped_steps = _count("skipped_steps")
    micro_steps = _count("micro_steps")
    global_samples = _count("global_samples")

    @property
    def loader(self) -> Any:
        return self.position.loader

    @loader.setter
    def loader(self, loader: Any) -> None:
        self.position.loader = loader

    @property
    def is_within_step(self) -> bool:
        """Returns whether there are micro-batches that an update has not used yet."""
        counted = self.core.progress_at_last_step.counts() != self.progress.counts()
        return counted or self.core.has_pending_gradients

    @property
    def progress(self) -> _C.Progress:
        """Returns the progress of training: that of the core, which can be set, or the last one of an ended core."""
        return self.last_progress if self.last_progress is not None else self.core.progress

    @property
    def batch(self) -> _C.BatchSize:
        return self.progress.batch

    @property
    def config(self) -> _C.Config:
        return self.parsed.config

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    @property
    def world_size(self) -> int:
        return dist.get_world_size() if dist.is_initialized() else 1

    @property
    def has_ended(self) -> bool:
        return isinstance(self.core, Ended)

    def end(self, why: str) -> None:
        """Ends the run: later use of its parts raises a ``StateError`` that says ``why``. Counts can still be read."""
        while self.at_end:
            self.at_end.pop()()
        if not self.has_ended:
            self.last_progress = copy.copy(self.core.progress)
        self.core = self.units = self.parameter_check = Ended(why)

    def external_params(self) -> Iterator[tuple[_C.OptimizerSlice, nn.Parameter]]:
        """Yields this rank's slices for the user's optimizer, each with the parameter that the optimizer has for it."""
        if self.external is None:
            return
        params = [iter(group["params"]) for group in self.external.param_groups]
        for part in self.core.slices():
            if part.param_group >= 0:
                yield part, next(params[part.param_group])
