"""Makes groups of neighbouring ranks that train on the same rows. Each rank has a piece of the sequence."""

from __future__ import annotations

import copy
import functools
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import _C
from .distributed import device_of_rank
from .forks import check_groups_are_own

_DEFAULT_TIMEOUT_MS = 600_000
_current: SequenceGroup | None = None


class SequenceGroup:
    """This rank's sequence group. ``core`` moves tensors among the group's ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rank = dist.get_rank() % size
        self.first_rank = dist.get_rank() - self.rank  # the number that rank 0 of the group has in the world
        self.settings: _C.Config | None = None  # configuration of the engine that trains with the group
        self.device: torch.device | None = None
        self.registered: dict[str, bool] | None = None  # options of cut_model() that a registration has chosen
        self.is_for_next_engine = False  # true: registered by a model's name, and the model's engine is not made yet
        self.process_group = _make_process_group(size)
        self._world = weakref.ref(dist.group.WORLD)

    @functools.cached_property
    def core(self) -> _C.SequenceGroup:
        """Returns the core's group. Collective at the first use."""
        device = self.device or device_of_rank(_C.rank_environment().local_rank)
        return _C.SequenceGroup(self.process_group.group_name, device, self.settings, self.first_rank)

    def for_engine(self, settings: _C.Config, device: torch.device) -> SequenceGroup:
        """Returns a copy of the group with the engine's transport and time-outs and a communicator of its own.

        The group itself gets these settings, too. So code that belongs to no engine, such as loaders with DeepSpeed's
        names, uses the settings of the engine that was made last.
        """
        self.settings, self.device = settings, device
        vars(self).pop("core", None)
        return copy.copy(self)

    @property
    def is_of_this_world(self) -> bool:
        return dist.is_initialized() and self._world() is dist.group.WORLD


def _make_process_group(size: int) -> dist.ProcessGroup:
    check_groups_are_own()
    timeout = timedelta(milliseconds=_DEFAULT_TIMEOUT_MS + 2000)  # longer than zeroshard's own time-out
    own, rank = None, dist.get_rank()
    for first in range(0, dist.get_world_size(), size):
        group = dist.new_group(list(range(first, first + size)), timeout=timeout)
        if first <= rank < first + size:
            own = group
    return own


def check_size(size: int, ranks: int) -> None:
    if size < 1 or ranks % size:
        fits = ", ".join(str(each) for each in range(1, ranks + 1) if ranks % each == 0)
        raise ValueError(f"sequence_parallel_size = {size} does not divide the {ranks} ranks: sizes that do are {fits}")


def make_group(size: int) -> SequenceGroup:
    """Returns the sequence group of this rank. The first call in a world makes it, and is collective over all ranks."""
    global _current
    if not dist.is_initialized():
        raise _C.StateError("sequence parallelism needs ranks: call zeroshard.init_distributed() before")
    check_size(size, dist.get_world_size())
    found = current()
    if found is not None and found.size != size:
        raise _C.StateError(
            f"this process has sequence groups of {found.size} ranks: it cannot train with groups of {size}, too"
        )
    if found is None:
        _current = found = SequenceGroup(size)
    return found


def current() -> SequenceGroup | None:
    """Returns the group that was made last, or None if there is none or its world is gone."""
    return _current if _current is not None and _current.is_of_this_world else None


def size() -> int:
    found = current()
    return found.size if found is not None else 1


def data_parallel_rank() -> int:
    """Returns this rank's number among the ranks that have rows of their own.

    The ranks of a sequence group count as one.
    """
    return dist.get_rank() // size() if dist.is_initialized() else 0


def data_parallel_size() -> int:
    return dist.get_world_size() // size() if dist.is_initialized() else 1


def size_of_mesh(mesh: Any) -> int:
    """Returns the size of the sequence groups of an ``mpu``. Raises ``ValueError`` for an ``mpu`` of another kind."""
    group = current()
    if group is None or not getattr(mesh, "stands_for_sequence_groups", False):
        raise ValueError(
            "mpu and mesh_param are not supported: zeroshard shards over all ranks. Only the mpu that "
            "UlyssesSPAttentionHF.register_with_transformers returns is"
        )
    return group.size
