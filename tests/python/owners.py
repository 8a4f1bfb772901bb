"""Finds models so small that some rank owns nothing of them: a test with such a model sees no sharding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

BLOCK_NUMEL = 1024  # shards are cut at multiples of so many elements
_MARK = "model of which a rank owns nothing: "


def owners(numel: int, world_size: int) -> int:
    """How many of `world_size` ranks own a part of `numel` elements that are sharded together."""
    blocks = -(-numel // BLOCK_NUMEL)
    return -(-blocks // max(1, -(-blocks // world_size)))


def numels_of(units: Sequence) -> list[int]:
    """Numbers of trainable elements that are sharded together, at most one number for each unit and dtype."""
    numels: dict[tuple[str, Any], int] = {}
    for unit in units:
        for param in unit.params:
            tensor = param.tensors[0]
            if tensor.requires_grad and tensor.numel():
                key = unit.name, tensor.dtype
                numels[key] = numels.get(key, 0) + tensor.numel()
    return list(numels.values())


def complaint(name: str, numels: Sequence[int], world_size: int) -> str | None:
    """What is wrong with a model whose units have `numels` trainable elements; None if every rank owns some."""
    most = max((owners(numel, world_size) for numel in numels), default=world_size)
    if most == world_size:
        return None
    return (
        f"rank {most} of {world_size} owns no trainable element of {name}, whose largest unit has {max(numels)}: "
        f"shards are cut at multiples of {BLOCK_NUMEL} elements, so the test sees no sharding on that rank. Give the "
        f"model a unit of more than {BLOCK_NUMEL * (world_size - 1)} and at most {BLOCK_NUMEL * world_size} elements, "
        f"as models.stack() has; or say why not: @pytest.mark.idle_ranks(reason)"
    )


def watch(log: str) -> None:
    """On a rank: from now on writes to the file `log` what is wrong with a model that an engine shards."""
    import torch.distributed as dist
    from zeroshard import making

    make_core = making._make_core

    def make(module: Any, parsed: Any, units: Any, setup: Any, *others: Any) -> Any:
        numels = numels_of(units) if setup.trains and parsed.config.stage > 0 else []  # later they may be in no memory
        core = make_core(module, parsed, units, setup, *others)
        if found := complaint(type(module).__name__, numels, dist.get_world_size() if dist.is_initialized() else 1):
            with open(log, "a") as file:
                file.write(f"{_MARK}{found}\n")
        return core

    making._make_core = make


def check(log: str) -> None:
    """Fails if a rank has written to its `log` that a model is too small."""
    if found := re.search(f"^{_MARK}(.*)$", log, re.MULTILINE):
        raise AssertionError(found[1])
