"""The state that the code shares which trains, saves, loads and ends an engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from . import _C
from .batch import Batch
from .optimizer import Optimizer
from .parameter_check import ParameterCheck
from .units import Unit


class Ended:
    """In place of the parts of an engine that has ended: whoever uses them is told why."""

    def __init__(self, why: str) -> None:
        self.__dict__["why"] = why

    def __getattr__(self, name: str) -> NoReturn:
        raise _C.StateError(self.__dict__["why"])

    def __iter__(self) -> Iterator[Any]:
        raise _C.StateError(self.__dict__["why"])


@dataclass
class Run:
    """The parts of one engine. ``core`` does the work; the rest is what a checkpoint, a scheduler or a getter asks."""

    module: nn.Module
    device: torch.device
    parsed: _C.ParsedConfig
    units: list[Unit] | Ended
    core: _C.Engine | Ended
    optimizer: Optimizer
    trains: bool  # else it can only evaluate
    external: torch.optim.Optimizer | None  # the user's own, which updates slices of parameters
    parameter_check: ParameterCheck | Ended
    batch: Batch
    lr_scheduler: Any = None
    loader: Any = None
    micro_steps: int = 0
    global_steps: int = 0
    global_samples: int = 0
    skipped_steps: int = 0
    boundary: bool | None = None  # as the caller says; None counts micro-batches
    applied: bool = False  # the last step
    grad_norm: float | None = None  # of the last step
    stop: bool = False  # some rank has asked for the run to end

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
        """From now on whoever uses its parts gets a ``StateError`` that says ``why``."""
        self.core = self.units = self.parameter_check = Ended(why)

    def is_boundary(self) -> bool:
        """Whether the current micro-batch is the last of its step."""
        return self.boundary if self.boundary is not None else (self.micro_steps + 1) % self.batch.accumulation == 0

    def external_params(self) -> Iterator[tuple[_C.OptimizerSlice, nn.Parameter]]:
        """The stretches of parameters that the user's own optimizer updates on this rank, as it knows them."""
        if self.external is None:
            return
        params = [iter(group["params"]) for group in self.external.param_groups]
        for part in self.core.slices():
            if part.param_group >= 0:
                yield part, next(params[part.param_group])
