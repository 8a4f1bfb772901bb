"""Marks on parameters and on users' optimizers that name their engine."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from . import _C

_MARK = "_zeroshard_unit"
_OWNER = "_zeroshard_owner"


class Mark(NamedTuple):
    """Of one tensor object of a parameter."""

    core: weakref.ref[_C.Engine]
    unit: int
    position: int  # of the parameter in its unit
    owner: weakref.ref[Any]


def mark(tensor: torch.Tensor, of: Mark) -> None:
    setattr(tensor, _MARK, of)


def unmark(tensor: torch.Tensor) -> None:
    delattr(tensor, _MARK)


def mark_of(tensor: torch.Tensor) -> Mark | None:
    """None unless an engine that is alive has the parameter, whose memory it may have freed."""
    found: Mark | None = getattr(tensor, _MARK, None)
    return found if found is not None and found.core() is not None else None


def owners_of(params: Iterable[torch.Tensor]) -> Iterator[tuple[Any, int]]:
    """For each parameter that has one: its owner, and its unit there."""
    for param in params:
        found: Mark | None = getattr(param, _MARK, None)
        if found is not None and (owner := found.owner()) is not None:
            yield owner, found.unit


def mark_optimizer(optimizer: torch.optim.Optimizer, owner: Any) -> None:
    vars(optimizer)[_OWNER] = weakref.ref(owner)


def unmark_optimizer(optimizer: torch.optim.Optimizer) -> None:
    vars(optimizer).pop(_OWNER, None)


def made_with(optimizer: torch.optim.Optimizer) -> list[list[torch.Tensor]]:
    """By param group the parameters that an optimizer was made with, also where an engine has put slices there."""
    owner = getattr(optimizer, _OWNER, lambda: None)()
    return owner.params_of_groups if owner is not None else [group["params"] for group in optimizer.param_groups]
