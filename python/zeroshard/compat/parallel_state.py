"""Implements ``deepspeed.runtime.sequence_parallel.parallel_state_sp``, which is also an ``mpu`` of sequence groups."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.nn import functional as differentiable

from .. import _C
from ..sequence_groups import SequenceGroup, current, make_group

stands_for_sequence_groups = True  # initialize(mpu=...) reads this


def initialize_sequence_parallel(sequence_parallel_size: int) -> None:
    """Makes the sequence groups. Collective."""
    if sequence_parallel_size <= 1:
        raise ValueError(f"sequence_parallel_size must be greater than 1, got {sequence_parallel_size}")
    make_group(sequence_parallel_size)
    gather_losses()


def gather_losses() -> None:
    """Makes ``all_gather`` of ``torch.distributed.nn`` use zeroshard's communicator for a sequence group.

    Replaces the function in ``torch.distributed.nn.functional``, too. Scripts gather their losses with this function.
    It is replaced because, over Gloo, torch's own function has no backward pass for a group without rank 0.
    """
    inner = differentiable.all_gather
    if getattr(inner, "of_sequence_groups", False):
        return

    @functools.wraps(inner)
    def all_gather(tensor: torch.Tensor, group: Any = dist.group.WORLD) -> tuple[torch.Tensor, ...]:
        own = current()
        if own is None or group is not own.process_group:
            return inner(tensor, group)
        # Exchanges the tensor as one head, of which every rank gets a copy. The backward pass then sums the gradients
        # of the copies in rank order.
        (gathered,) = own.core.exchange([tensor.reshape(1, 1, 1, -1)])
        return tuple(piece.view(tensor.shape) for piece in gathered.flatten(0, 1)[0].unbind(0))

    all_gather.of_sequence_groups = True
    differentiable.all_gather = torch.distributed.nn.all_gather = all_gather


def _group() -> SequenceGroup:
    group = current()
    if group is None:
        raise _C.StateError(
            "there are no sequence groups: UlyssesSPAttentionHF.register_with_transformers makes them, and so does an "
            'engine with "sequence_parallel_size" in its configuration'
        )
    return group


def get_sequence_parallel_group() -> dist.ProcessGroup:
    return _group().process_group


def get_sequence_parallel_world_size() -> int:
    return _group().size


def get_sequence_parallel_rank() -> int:
    return _group().rank


def get_sequence_data_parallel_group() -> dist.ProcessGroup | None:
    """Returns the group of all ranks, because zeroshard shards over all of them."""
    return dist.group.WORLD


def get_sequence_data_parallel_world_size() -> int:
    return dist.get_world_size()


def get_sequence_data_parallel_rank() -> int:
    return dist.get_rank()
