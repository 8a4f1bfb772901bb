"""Makes the process groups over which an engine communicates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from . import _C
from .distributed import end_default_group, keep_default_group
from .forks import check_groups_are_own
from .group_life import destroy_unused, note_group
from .meeting import await_left_behind, left_on_error, meet, while_all_live

T = TypeVar("T")

_CHECKPOINT_TIMEOUT = timedelta(hours=1)  # a rank waits while another one writes or reads all of its share


def connect(timeout_ms: int, make: Callable[[dict[str, Any]], T], purpose: str = "process groups") -> T:
    """Returns ``make(groups)``, where ``groups`` is the result of ``make_groups``. Collective.

    If ``make`` raises, this rank leaves the meeting. If there is a meeting, an error of torch.distributed becomes a
    ``CommError``, which names a rank that has died or left, if one has.
    """
    groups = make_groups(timeout_ms, purpose)
    meeting = groups.get("meeting")
    with left_on_error(meeting):
        try:
            return make(groups)
        except dist.DistError as error:
            if meeting is None:
                raise
            meeting.explain(str(error))


def make_groups(timeout_ms: int, purpose: str = "process groups") -> dict[str, Any]:
    """Makes the process groups with which the core connects the ranks. Collective.

    Returns the names of three groups, and the meeting of the ranks. The groups are for gathers, for reductions and for
    checkpoints. Gathers and reductions have a group each, so that each rank can interleave them in an order of its own.
    The ranks watch one another until the core has connected them. With the backend MPI the meeting is None. For a
    single rank the names are empty, and there is no meeting.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return {"gather_group": "", "reduce_group": "", "checkpoint_group": ""}
    check_groups_are_own()
    patience = timedelta(milliseconds=timeout_ms)
    await_left_behind(patience)
    destroy_unused()
    # torch's time-out is longer than zeroshard's own, so that the user sees the error of zeroshard, which names the
    # rank and the unit.
    timeout = timedelta(milliseconds=timeout_ms + 2000)
    meeting = None
    if dist.get_backend() != dist.Backend.MPI:  # MPI has no store
        # torch's store puts a prefix before every key. Takes the store inside of it, because this meeting must see the
        # entries of the meeting for the default group, which do not have the prefix.
        store = dist.distributed_c10d._get_default_store()
        store = getattr(store, "underlying_store", store)
        try:
            meeting = meet(store, dist.get_rank(), dist.get_world_size(), patience, purpose)
        except _C.CommError as error:
            if getattr(error, "out_of_step", False):
                end_default_group()  # other ranks are making the default group, so this rank must make it anew, too
            raise

    def make() -> list[str]:
        names = []
        for options in [{"timeout": timeout}] * 2 + [{"timeout": max(timeout, _CHECKPOINT_TIMEOUT), "backend": "gloo"}]:
            group = dist.new_group(**options)
            note_group(group)  # so that this group ends before the next try if a later group cannot be made
            names.append(group.group_name)
        return names

    gather, reduce, checkpoint = while_all_live(meeting, "process groups", make, undo=lambda names: None)
    keep_default_group()
    return {"gather_group": gather, "reduce_group": reduce, "checkpoint_group": checkpoint, "meeting": meeting}
