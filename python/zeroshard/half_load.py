"""Marks parameters that have values of two checkpoints because a ``load_checkpoint`` failed half way.

Another engine refuses a marked parameter until somebody has written values to it. So a mark is only valid while
PyTorch's count of writes to the parameter is the same as when the parameter was marked.
"""

from __future__ import annotations

import torch
from torch import nn

from . import _C
from .names import plain_name
from .run import Run

_MARK = "_zeroshard_half_loaded"
_SHOWN = 5


def note_half_load(run: Run) -> None:
    """Marks the half loaded parameters and removes all other marks. Called after every load, failed or not."""
    left = dict(run.core.half_loaded)
    for param in (param for unit in run.units for param in unit.params):
        checkpoint = left.get(param.names[0])
        for tensor in param.tensors:
            vars(tensor).pop(_MARK, None)
            if checkpoint is not None:
                setattr(tensor, _MARK, (checkpoint, _version(tensor)))


def half_loaded(module: nn.Module) -> list[tuple[str, str]]:
    """Returns the parameters whose mark is still valid, each with the checkpoint that was partly read."""
    marked = [(name, param, getattr(param, _MARK, None)) for name, param in module.named_parameters()]
    return [
        (plain_name(name), mark[0]) for name, param, mark in marked if mark is not None and mark[1] == _version(param)
    ]


def describe(left: list[tuple[str, str]]) -> str:
    names = ", ".join(f"'{name}'" for name, _ in left[:_SHOWN])
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    return f"load_checkpoint failed when it had read a part of {left[0][1]}: {names}{more} may be of two checkpoints"


def refuse_half_loaded(left: list[tuple[str, str]]) -> None:
    """Raises ``StateError`` if there are half loaded parameters."""
    if left:
        raise _C.StateError(
            f"zeroshard.initialize: {describe(left)}. Load one that is whole by the engine that has them, or give them "
            "values (model.load_state_dict), before another engine takes them"
        )


def _version(tensor: torch.Tensor) -> int | None:
    """Returns PyTorch's count of writes to the tensor, or None if PyTorch does not count them."""
    return None if tensor.is_inference() else tensor._version
