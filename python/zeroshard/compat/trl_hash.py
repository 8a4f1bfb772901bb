"""Makes TRL's hash of a model work at stage 3.

DPO with ``precompute_ref_log_probs`` computes it before an engine exists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..gathering import gathered
from ..marks import mark_of
from ..shards import shard_of
from ..wrapping import wrap_once


def gather_for_hashes() -> None:
    """Makes TRL's ``hash_module`` gather sharded parameters one by one, and so be collective, if TRL is imported."""
    for user in [module for name, module in sys.modules.items() if name.startswith("trl.trainer.")]:
        wrap_once(user, "hash_module", _hash_module)


def _hash_module(own: Callable[[Any], str], module: nn.Module) -> str:
    return own(_OneByOne(module))


class _OneByOne:
    """Replaces a module for ``hash_module``. ``cpu()`` of each value of its ``state_dict`` gathers one parameter."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        return {name: _Value(value) for name, value in self._module.state_dict(keep_vars=True).items()}


class _Value:
    def __init__(self, value: torch.Tensor) -> None:
        self._value = value

    def cpu(self) -> torch.Tensor:
        if shard_of(self._value) is None and mark_of(self._value) is None:
            return self._value.detach().cpu()
        with gathered([self._value]):
            return self._value.detach().to("cpu", copy=True)
