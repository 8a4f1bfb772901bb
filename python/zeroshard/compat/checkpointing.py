"""Implements ``deepspeed.checkpointing``: recomputes activations as torch.utils.checkpoint does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..activations import recompute

_configured = False


def configure(
    mpu_: Any = None,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Accepts DeepSpeed's settings, which have no effect.

    Raises ``ValueError`` if ``partition_activations``, ``contiguous_checkpointing`` or ``checkpoint_in_cpu`` is true.
    """
    global _configured
    for name, value in (
        ("partition_activations", partition_activations),
        ("contiguous_checkpointing", contiguous_checkpointing),
        ("checkpoint_in_cpu", checkpoint_in_cpu),
    ):
        if value:
            raise ValueError(
                f"deepspeed.checkpointing.configure: {name} is True, and zeroshard has no such thing: set it to False"
                + (" (the key zeroshard.offload.activations moves checkpoints)" if name == "checkpoint_in_cpu" else "")
            )
    _configured = True


def is_configured() -> bool:
    return _configured


def reset() -> None:
    """Does nothing, because zeroshard has no buffers of activations."""


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Returns ``function(*args)``. The backward pass computes the function's activations a second time."""
    return recompute(function, *args, use_reentrant=False)


non_reentrant_checkpoint = checkpoint
