"""Adapts Lightning's DeepSpeedStrategy, which at its end would move each state of the optimizers to the host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ..optimizer import Optimizer
from ..wrapping import wrap_once

_PACKAGES = ("lightning.fabric", "lightning_fabric")  # both have the same code


def keep_states() -> None:
    """Makes Lightning leave the states of an engine's optimizer where they are, if Lightning is imported."""
    for package in _PACKAGES:
        wrap_once(sys.modules.get(f"{package}.utilities.optimizer"), "_optimizer_to_device", _to_device)


def _to_device(own: Callable[..., None], optimizer: torch.optim.Optimizer, device: Any) -> None:
    if not isinstance(optimizer, Optimizer):  # Optimizer is the class that initialize() returns
        own(optimizer, device)
