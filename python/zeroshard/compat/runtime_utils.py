"""Has the functions of ``deepspeed.runtime.utils`` that scripts use."""

from __future__ import annotations

import random
from typing import Any

import torch

from .accelerator import get_accelerator
from .logs import logger


def set_random_seed(seed: int) -> None:
    """Seeds Python, torch, and NumPy if it is installed."""
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ModuleNotFoundError:
        return
    numpy.random.seed(seed)


def see_memory_usage(message: str, force: bool = False) -> None:
    """Logs the memory of this rank's device, if ``force`` is true."""
    if force:
        device = get_accelerator()
        used, peak = device.memory_allocated() / 1e9, device.max_memory_allocated() / 1e9
        logger.info(f"{message}: {used:.2f} GB allocated on {device.device_name()}, at most {peak:.2f} GB")


def move_to_device(item: Any, device: Any, criterion_func: Any = None) -> Any:
    """Returns ``item`` with its tensors on ``device`` if they meet the criterion. Visits lists, tuples and dicts."""
    if isinstance(item, torch.Tensor):
        return item.to(device) if criterion_func is None or criterion_func(item) else item
    if isinstance(item, list | tuple):
        parts = [move_to_device(each, device, criterion_func) for each in item]
        return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
    if isinstance(item, dict):
        return {key: move_to_device(value, device, criterion_func) for key, value in item.items()}
    return item
