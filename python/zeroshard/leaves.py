"""Finds tensors in the arguments and results of modules."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


def tensors_in(output: Any) -> list[torch.Tensor]:
    """Returns the tensors in a module's output: in containers, dataclasses, and attributes of other objects."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, tuple) and all(isinstance(item, torch.Tensor) for item in output):
        return list(output)
    return _walk(output, {})


def _walk(value: Any, seen: dict[int, Any]) -> list[torch.Tensor]:
    """Returns the tensors in ``value``.

    ``seen`` keeps visited objects alive, so that no new object gets the ``id()`` of a visited one.
    """
    tensors = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        elif id(leaf) not in seen:
            seen[id(leaf)] = leaf
            tensors += _walk(_held_by(leaf), seen)
    return tensors


def _held_by(leaf: Any) -> list[Any]:
    """Returns the parts of ``leaf`` that can contain tensors. ``leaf`` is of a class that pytree does not know."""
    if isinstance(leaf, (type, nn.Module)):
        return []
    if dataclasses.is_dataclass(leaf):
        return [getattr(leaf, item.name) for item in dataclasses.fields(leaf)]
    if isinstance(leaf, (dict, list, tuple)):  # subclasses that pytree does not know
        return list(leaf.values() if isinstance(leaf, dict) else leaf)
    held = getattr(leaf, "__dict__", {}).values()
    return [value for value in held if isinstance(value, (torch.Tensor, tuple, list, dict))]
