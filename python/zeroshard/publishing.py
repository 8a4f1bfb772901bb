"""Methods of the user's optimizer that write weights outside of ``step()``, as a schedule-free one's ``eval()``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import isfunction
from typing import Any

import torch

from . import _C

# Methods of torch.optim.Optimizer that write no weights, also where a class has its own.
_NOT_THESE = frozenset(name for name in dir(torch.optim.Optimizer) if not name.startswith("__"))


class Publishing:
    """Publishes what methods of an optimizer outside of the core write to its slices of the master weights.

    A rank publishes if the method has changed its slices, or if it has none. So every rank calls a method that writes
    weights, and one rank alone may call a method that does not.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, core: _C.Engine) -> None:
        self._optimizer = optimizer
        self._core = core
        self._is_inside = False  # of step(), which the engine publishes, or of another method

    def methods(self) -> dict[str, Callable]:
        """The optimizer's own public methods, by name, each of which publishes."""
        own = [each for each in type(self._optimizer).__mro__ if each not in torch.optim.Optimizer.__mro__]
        names = [name for each in own for name, method in vars(each).items() if isfunction(method)]
        return {
            name: self.publishing(getattr(self._optimizer, name))
            for name in names
            if not name.startswith("_") and name not in _NOT_THESE
        }

    def inside(self, method: Callable) -> Callable:
        """``method``, in which other methods publish nothing."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            before, self._is_inside = self._is_inside, True
            try:
                return method(*args, **kwargs)
            finally:
                self._is_inside = before

        return call

    def publishing(self, method: Callable) -> Callable:
        """``method``, which publishes."""
        inside = self.inside(method)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return method(*args, **kwargs)
            self._core.await_readers_of_master_weights()
            before = self._sums()
            try:
                return inside(*args, **kwargs)
            finally:
                if not before or self._sums() != before:
                    self._core.publish_master_weights()

        return call

    def _sums(self) -> list[int]:
        """A sum of the bits of each slice that has elements."""
        slices = [param.detach() for group in self._optimizer.param_groups for param in group["params"]]
        return [int(each.view(torch.int32).sum(dtype=torch.int64)) for each in slices if each.numel() > 0]
