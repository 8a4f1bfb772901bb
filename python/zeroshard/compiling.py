"""Compiles the units of an engine with torch.compile."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .sequence_model import cut_of
from .units import Unit


def compile_units(units: Sequence[Unit], backend: str | Callable, options: dict[str, Any]) -> None:
    """Compiles the forwards of the modules of units. Skips a module that contains another one of these modules.

    ``options`` are for ``torch.compile``. Hooks stay outside of the compiled graphs, because they gather and free
    parameters. Blocks of one class share the compiled code. Raises ``ValueError`` for ``fullgraph`` if ranks exchange
    heads inside of layers.
    """
    modules = {id(module): module for unit in units for module in unit.modules}
    if options.get("fullgraph") and any(cut_of(module) is not None for module in modules.values()):
        raise ValueError(
            "compile: fullgraph=True does not go with sequence_parallel_size > 1, because the ranks of a sequence "
            "group exchange heads between the graphs of a layer: leave fullgraph out of compile_kwargs"
        )
    for module in modules.values():
        if not any(id(inner) in modules for inner in module.modules() if inner is not module):
            module.forward = _CompiledForward(module.forward, torch.compile(module.forward, backend=backend, **options))


class _CompiledForward:
    """The compiled forward of a module. A copy of the module gets the original forward."""

    def __init__(self, before: Callable, compiled: Callable) -> None:
        functools.update_wrapper(self, before)
        self._before, self._compiled = before, compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable:
        return copy.deepcopy(self._before, memo)


def check_arguments(schedule: Any, compiled_autograd_enabled: bool) -> None:
    """Raises ``ValueError`` for options of DeepSpeed's ``compile`` that zeroshard does not support."""
    if schedule is not None:
        raise ValueError("compile: schedule is of DeepCompile, which is not supported: leave it out")
    if compiled_autograd_enabled:
        raise ValueError(
            "compile: compiled_autograd_enabled is not supported: gradients are reduced while backward runs. "
            "Leave it out; the backward of each unit is compiled all the same"
        )
