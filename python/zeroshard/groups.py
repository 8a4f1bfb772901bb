"""The process groups that an engine communicates over."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from . import _C

_CHECKPOINT_TIMEOUT = timedelta(hours=1)  # a rank waits while another writes or reads its whole share


def make_groups(timeout_ms: int) -> tuple[str, str, str]:
    """Their names: for gathers, for reductions (two, so that ranks may interleave them differently), checkpoints."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return "", "", ""
    # Longer than zeroshard's own, whose messages name the rank and the unit.
    timeout = timedelta(milliseconds=timeout_ms + 2000)
    try:
        first, second = dist.new_group(timeout=timeout), dist.new_group(timeout=timeout)
        third = dist.new_group(timeout=max(timeout, _CHECKPOINT_TIMEOUT), backend="gloo")
    except dist.DistError as error:
        raise _C.CommError(
            f"rank {dist.get_rank()}: another rank has not reached zeroshard.initialize after {timeout_ms / 1000:g} s "
            f"(zeroshard.timeout_s), or has died: look for the first error of the other ranks. {error}"
        ) from error
    return first.group_name, second.group_name, third.group_name
