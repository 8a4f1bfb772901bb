"""The process groups that an engine communicates over."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from . import _C
from .forks import check_groups_are_own
from .group_life import destroy_unused, note_groups
from .interruptible import interruptibly

_CHECKPOINT_TIMEOUT = timedelta(hours=1)  # a rank waits while another writes or reads its whole share


def make_groups(timeout_ms: int) -> tuple[str, str, str]:
    """Their names: for gathers, for reductions (two, so that ranks may interleave them differently), checkpoints."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return "", "", ""
    check_groups_are_own()
    destroy_unused()
    # Longer than zeroshard's own, whose messages name the rank and the unit.
    timeout = timedelta(milliseconds=timeout_ms + 2000)
    try:
        first, second = (interruptibly(lambda: dist.new_group(timeout=timeout)) for _ in range(2))
        third = interruptibly(lambda: dist.new_group(timeout=max(timeout, _CHECKPOINT_TIMEOUT), backend="gloo"))
    except dist.DistError as error:
        raise _C.CommError(
            f"rank {dist.get_rank()}: another rank has not reached zeroshard.initialize after {timeout_ms / 1000:g} s "
            f"(zeroshard.timeout_s), or has died: look for the first error of the other ranks. {error}"
        ) from error
    names = first.group_name, second.group_name, third.group_name
    note_groups(names)
    return names
