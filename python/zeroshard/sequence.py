"""Implements ``zeroshard.sequence_parallel``, which lets ranks share rows, for long sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from . import _C
from .engine import Engine
from .sequence_groups import SequenceGroup, current, make_group, size_of_mesh
from .sequence_model import cut_model, cut_of, uncut_model
from .sequence_rows import PieceLoader


def sequence_parallel(model: Any, loader: Iterable, size: int | None = None) -> PieceLoader:
    """Returns a loader that gives each rank of a sequence group its piece of the rows of ``loader``. Collective.

    The loader of one rank after another gives a batch, which is cut into a piece for each rank of the group. So the
    result has ``size`` times as many batches as ``loader``. A batch is a dict with ``input_ids``. The pieces have
    ``position_ids``, even if the batch has none, and ``shift_labels`` in place of ``labels``. The model's loss is the
    mean over all tokens with a label in the whole rows.

    Args:
        model: an engine whose configuration has ``sequence_parallel_size``, or a model of transformers.
        loader: gives each rank batches of its own, as for data-parallel training.
        size: number of ranks in a sequence group. It is required for a model that has no sequence groups yet.

    Raises ``ValueError`` for a model whose sequence cannot be cut, and for a ``size`` that does not divide the ranks.

    >>> config["sequence_parallel_size"] = 2
    >>> engine, _, loader, _ = zeroshard.initialize(model=model, config=config, training_data=rows)
    >>> loader = zeroshard.sequence_parallel(engine, loader)
    """
    module = model.module if isinstance(model, Engine) else model
    if cut_of(module) is None:
        if size is None:
            raise _C.StateError(
                'sequence_parallel: the engine has no sequence groups: set "sequence_parallel_size" in its '
                "configuration, or give the size for a model that has no engine yet"
            )
        cut_model(module, make_group(size))
    group = cut_of(module).group
    if size not in (None, group.size):
        raise ValueError(f"sequence_parallel: size is {size}, and the model's sequence groups have {group.size} ranks")
    return PieceLoader(loader, group)


def group_of_engine(
    model: nn.Module, config: _C.Config, device: torch.device, mesh: Any = None
) -> SequenceGroup | None:
    """Makes the ranks of a sequence group share the rows of a new engine's model, and returns this rank's group.

    Collective if groups must be made. For a ``sequence_parallel_size`` of 1, makes every part of the model take whole
    rows again instead, and returns None.
    """
    if config.sequence_parallel_size == 1:
        while (part := _cut_part(model)) is not None:
            uncut_model(part)
        return None
    group = make_group(config.sequence_parallel_size)
    own = group.for_engine(config, device)
    had = cut_of(model)
    if had is not None and not had.by_engine and had.group.process_group is group.process_group:
        had.group = own
    else:
        is_registered = mesh is not None or group.is_for_next_engine or _is_registered(model)
        cut_model(model, own, **(group.registered if is_registered and group.registered else {"by_engine": True}))
    group.is_for_next_engine = False
    return own


def size_before_engine(model: nn.Module, mesh: Any) -> int | None:
    """Returns the size of the sequence groups that the caller has given as ``mpu`` or has made for the model.

    Groups that were registered by a model's name are for the next engine. Returns None if there are no such groups.
    """
    if mesh is not None:
        return size_of_mesh(mesh)
    if _is_registered(model):
        return cut_of(_cut_part(model)).group.size
    group = current()
    return group.size if group is not None and group.is_for_next_engine else None


def _is_registered(model: nn.Module) -> bool:
    """Returns whether the caller has cut the model, or a model inside of it that PEFT has wrapped since then."""
    part = _cut_part(model)
    return part is not None and not cut_of(part).by_engine


def _cut_part(model: nn.Module) -> nn.Module | None:
    return next((module for module in model.modules() if cut_of(module) is not None), None)
