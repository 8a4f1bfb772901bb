"""The process groups that an engine communicates over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .forks import check_groups_are_own
from .group_life import destroy_unused, note_groups
from .interruptible import interruptibly
from .meeting import meet, while_all_live

_CHECKPOINT_TIMEOUT = timedelta(hours=1)  # a rank waits while another writes or reads its whole share


def make_groups(timeout_ms: int) -> dict[str, Any]:
    """What the core connects ranks by. Collective.

    The names of groups for gathers and for reductions (two, so that ranks may interleave them differently) and for
    checkpoints, and the meeting of the ranks, who watch one another until the core has connected them.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return {"gather_group": "", "reduce_group": "", "checkpoint_group": ""}
    check_groups_are_own()
    destroy_unused()
    # Longer than zeroshard's own, whose messages name the rank and the unit.
    timeout = timedelta(milliseconds=timeout_ms + 2000)
    meeting = None
    if dist.get_backend() != dist.Backend.MPI:  # which has no store
        # Below torch's own prefix: this meeting finds the cards of the one before the default group was made.
        store = dist.distributed_c10d._get_default_store()
        store = getattr(store, "underlying_store", store)
        meeting = meet(store, dist.get_rank(), dist.get_world_size(), timedelta(milliseconds=timeout_ms))

    def make() -> tuple[str, str, str]:
        first, second = (dist.new_group(timeout=timeout) for _ in range(2))
        third = dist.new_group(timeout=max(timeout, _CHECKPOINT_TIMEOUT), backend="gloo")
        return first.group_name, second.group_name, third.group_name

    names = while_all_live(meeting, "process groups", make) if meeting else interruptibly(make)
    note_groups(names)
    gather, reduce, checkpoint = names
    return {"gather_group": gather, "reduce_group": reduce, "checkpoint_group": checkpoint, "meeting": meeting}
