"""Ends the process groups with which engines were made, because each group has threads and connections."""

from __future__ import annotations

import weakref

import torch.distributed as dist

from . import _C

# Weak references to groups. Names would not do, because torch reuses a group's name after all groups were destroyed.
_making: list[weakref.ref[dist.ProcessGroup]] = []  # groups whose engine is being made or could not be made
_unused: list[weakref.ref[dist.ProcessGroup]] = []  # groups whose engine is gone


def note_group(group: dist.ProcessGroup) -> None:
    """Records that ``group`` is for the next engine that is made."""
    _making.append(weakref.ref(group))


def end_groups_with(core: _C.Engine) -> None:
    """Ends the groups that were made for ``core``, now or later. All ranks must have finished making the engine.

    If the core uses shared memory in place of a group, the group ends now. Any other group ends in the first call of
    ``destroy_unused`` after the core is gone.
    """
    groups = _making.copy()
    _making.clear()
    needed = [group for group, transport in zip(groups, core.transports, strict=False) if transport != "shm"]
    _unused.extend(group for group in groups if group not in needed)
    destroy_unused()
    if needed:
        # The callback only records the groups, because it can run while torch.distributed changes its tables.
        weakref.finalize(core, _unused.extend, needed).atexit = False


def destroy_unused() -> None:
    """Ends groups whose engine is gone or was never made."""
    groups = [*_unused, *_making]
    _unused.clear()
    _making.clear()
    for group in [group for group in dist.distributed_c10d._world.pg_map if weakref.ref(group) in groups]:
        dist.destroy_process_group(group)


def forget_groups() -> None:
    """Forgets the groups in a forked child, because they belong to its parent."""
    _unused.clear()
    _making.clear()
