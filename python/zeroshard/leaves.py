"""Tensors in what modules take and return."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


def tensors_in(output: Any) -> list[torch.Tensor]:
    """The tensors of what a module returned: in containers, dataclasses, and attributes of other objects."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, tuple) and all(isinstance(item, torch.Tensor) for item in output):
        return list(output)
    tensors = []
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            tensors += tensors_in([getattr(leaf, item.name) for item in dataclasses.fields(leaf)])
        elif isinstance(leaf, (dict, list, tuple)):  # of classes that pytree does not know
            tensors += tensors_in(list(leaf.values() if isinstance(leaf, dict) else leaf))
        elif not isinstance(leaf, (type, nn.Module)):
            held = getattr(leaf, "__dict__", {}).values()
            tensors += tensors_in([value for value in held if isinstance(value, (torch.Tensor, tuple, list, dict))])
    return tensors


def to_half(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.half() if is_float else value
