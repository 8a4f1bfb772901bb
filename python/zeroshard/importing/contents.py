"""Defines the result of an import from any format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..names import plain_names

MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "sum")  # the kinds of optimizer states in docs/format.md
GROUP_KEYS = ("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov")


@dataclass
class Entry:
    """A tensor of the new checkpoint. ``fill`` writes its elements into a tensor of ``dtype`` and ``shape``."""

    name: str
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    fill: Callable[[torch.Tensor], Any]
    aliases: list[str] = field(default_factory=list)
    trainable: bool = False
    updates: int = 0

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass
class Contents:
    source: str  # program that wrote the checkpoint, such as "DeepSpeed 0.19.8, ZeRO 2, 4 ranks"
    step: int
    entries: list[Entry] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)  # counts, param_groups, lr_scheduler; not encoded yet
    client: dict[str, Any] = field(default_factory=dict)
    loss_scale: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # about parts that could not be imported


def make_names_plain(entries: list[Entry]) -> None:
    """Removes the parts of the entries' names that torch.compile adds."""
    for kind in {entry.kind for entry in entries}:
        of_kind = [(entry, [entry.name, *entry.aliases]) for entry in entries if entry.kind == kind]
        plain = plain_names((name, id(entry)) for entry, names in of_kind for name in names)
        for entry, names in of_kind:
            entry.name, *entry.aliases = dict.fromkeys(plain[name] for name in names)


def copy_of(tensor: torch.Tensor) -> Callable[[torch.Tensor], Any]:
    return lambda out: out.copy_(tensor.detach().reshape(out.shape))


def whole(name: str, kind: str, tensor: torch.Tensor, **more: Any) -> Entry:
    return Entry(name, kind, tensor.dtype, tuple(tensor.shape), copy_of(tensor), **more)


def count(value: Any) -> int:
    """Returns a number of steps, which is stored as an int, a float or a tensor of one element.

    Returns 0 for other values.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 2**53 else 0
