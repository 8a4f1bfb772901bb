"""``zeroshard.sequence_parallel``: ranks that share rows, for long sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from . import _C
from .engine import Engine
from .sequence_groups import SequenceGroup, make_group, size_of_mesh
from .sequence_model import cut_model, cut_of, uncut_model
from .sequence_rows import PieceLoader


def sequence_parallel(model: Any, loader: Iterable, size: int | None = None) -> PieceLoader:
    """A loader that gives each rank of a sequence group its piece of the rows of ``loader``. Collective.

    Each rank's own batches are dealt to all ranks of its group, one after the other, so the result has ``size`` times
    as many. A batch is a dict with ``input_ids``; ``position_ids`` are added where they are missing, and
    ``shift_labels`` take the place of ``labels``. The model's loss is the mean over the words of the whole rows.

    Args:
        model: an engine whose configuration has ``sequence_parallel_size``, or a model of transformers.
        loader: gives each rank its own batches, as for data-parallel training.
        size: ranks in a sequence group; needed where ``model`` is no engine.

    Raises ``ValueError`` for a model whose sequence cannot be cut, and for a ``size`` that does not divide the ranks.

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


def group_of_engine(model: nn.Module, config: _C.Config, device: torch.device) -> SequenceGroup | None:
    """Cuts the model that an engine is made for, as its configuration says. Collective where that makes groups."""
    had = cut_of(model)
    if config.sequence_parallel_size == 1:
        uncut_model(model)
        return None
    group = make_group(config.sequence_parallel_size)
    group.serve(config, device)
    if had is None or had.group is not group:
        cut_model(model, group, **group.cuts_models_with)
    return group


def size_before_engine(model: nn.Module, mesh: Any) -> int | None:
    """Of the sequence groups that the caller of ``initialize`` has made for the model, or gives as ``mpu``."""
    if mesh is not None:
        return size_of_mesh(mesh)
    had = cut_of(model)
    return had.group.size if had is not None and not had.by_engine else None
