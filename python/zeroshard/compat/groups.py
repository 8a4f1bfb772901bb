"""Implements ``deepspeed.utils.groups``, the groups of ranks.

As in DeepSpeed, the results are those of the process, not of an engine. If the process has made sequence groups, the
functions return them, even if the latest engine has none.
"""

from __future__ import annotations

import torch.distributed as dist

from ..sequence_groups import current, data_parallel_rank, data_parallel_size, size
from .parallel_state import get_sequence_data_parallel_group, get_sequence_parallel_group


def get_data_parallel_group() -> dist.ProcessGroup | None:
    """Returns the group of all ranks, or None with sequence groups, as DeepSpeed does."""
    return dist.group.WORLD if size() == 1 else None


def get_model_parallel_world_size() -> int:
    return 1


def get_model_parallel_rank() -> int:
    return 0


def _get_sequence_parallel_rank() -> int:
    group = current()
    return group.rank if group is not None else 0


def _get_sequence_data_parallel_world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _get_sequence_data_parallel_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


_get_sequence_parallel_group = get_sequence_parallel_group
_get_sequence_parallel_world_size = size
_get_sequence_data_parallel_group = get_sequence_data_parallel_group
get_data_parallel_rank = _get_data_parallel_rank = data_parallel_rank
get_data_parallel_world_size = _get_data_parallel_world_size = data_parallel_size
_get_data_parallel_group = get_data_parallel_group
_get_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_rank = get_model_parallel_rank
get_tensor_model_parallel_world_size = get_model_parallel_world_size
