"""Keeps a forked child of a rank from using its parent's process groups."""

from __future__ import annotations

import os

import torch.distributed as dist

from . import _C
from .distributed import forget_stores
from .group_life import forget_groups

_inherited: dist.ProcessGroup | None = None  # the default group of the parent


def check_groups_are_own() -> None:
    """Raises ``StateError`` in a forked child whose default group is still that of its parent."""
    if _inherited is not None and dist.is_initialized() and dist.group.WORLD is _inherited:
        raise _C.StateError(
            f"process {os.getpid()} is a fork of rank {dist.get_rank()} (process {os.getppid()}), whose process groups "
            "it has inherited: it must not make an engine over them. Start it without fork() (multiprocessing's "
            '"spawn"), with variables of a launcher of its own'
        )


def _after_fork_in_child() -> None:
    global _inherited
    forget_groups()
    forget_stores()
    if not dist.is_initialized():
        return
    _inherited = dist.group.WORLD
    # Keeps the groups forever. Destroying them would join threads that the child does not have, and never return.
    for group, (_, store) in dist.distributed_c10d._world.pg_map.items():
        _C.keep_forever(group)
        _C.keep_forever(store)


os.register_at_fork(after_in_child=_after_fork_in_child)
