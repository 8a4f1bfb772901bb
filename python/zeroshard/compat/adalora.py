"""AdaLoRA of peft at stage 3. It reads all adapters in the model's forward, and reads and masks them after a step."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from torch import nn

from ..marks import mark_of
from .fragments import safe_get_full_fp32_param, safe_get_full_grad, safe_set_full_fp32_param

_WRAPPED = "_zeroshard_reads_shards"
_ADAPTERS = ("lora_A", "lora_B", "lora_E")


def read_adapters() -> None:
    """From now on AdaLoRA's model and allocator, where they are imported, work on sharded adapters."""
    model = getattr(sys.modules.get("peft.tuners.adalora.model"), "AdaLoraModel", None)
    allocator = getattr(sys.modules.get("peft.tuners.adalora.layer"), "RankAllocator", None)
    if model is not None and not hasattr(model.forward, _WRAPPED):
        model.forward = _wrapped(model.forward, _forward)
    if allocator is not None and not hasattr(allocator.update_and_allocate, _WRAPPED):
        allocator.update_and_allocate = _wrapped(allocator.update_and_allocate, _on_copies)
        allocator.mask_using_rank_pattern = _wrapped(allocator.mask_using_rank_pattern, _on_copies)


def _wrapped(own: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return instead(own, self, *args, **kwargs)

    setattr(method, _WRAPPED, True)
    return method


def _adapters_of(model: nn.Module, adapter: str) -> list[tuple[str, nn.Parameter]]:
    """The trained parameters of an adapter that an engine has sharded, with their names; none if they are whole."""
    named = [
        (name, param)
        for name, param in model.named_parameters()
        if adapter in name and any(kind in name for kind in _ADAPTERS) and mark_of(param) is not None
    ]
    marks = [mark_of(param) for _, param in named]
    return named if any(not mark.core().is_replicated(mark.unit) for mark in marks) else []


def _forward(own: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    adapter = self.trainable_adapter_name
    named = [(name, param) for name, param in _adapters_of(self.model, adapter) if "lora_E" not in name]
    weight = self.peft_config[adapter].orth_reg_weight
    if not named or weight < 0:  # which peft refuses
        return own(self, *args, **kwargs)
    outputs = self.model.forward(*args, **kwargs)
    if isinstance(getattr(outputs, "loss", None), torch.Tensor):
        outputs.loss += weight * torch.stack(_distances(named)).mean()
    return outputs


def _distances(named: list[tuple[str, nn.Parameter]]) -> list[torch.Tensor]:
    """How far the rows of each A and the columns of each B are from orthonormal: the norm of A A^T - I or B^T B - I.

    (Equation 4 of the AdaLoRA paper, https://openreview.net/pdf?id=lq62uWRJjiY; peft does not square the norm.)
    One unit is gathered at a time.
    """
    found = []
    for _, of_unit in groupby(named, key=lambda each: mark_of(each[1]).unit):
        params, made = list(of_unit), []
        mark = mark_of(params[0][1])
        with mark.owner().readers.reading(mark.unit, made):
            for name, param in params:
                product = param @ param.T if "lora_A" in name else param.T @ param
                made.append(product)
        found += made
    return [torch.norm(each - torch.eye(len(each), dtype=each.dtype, device=each.device), p="fro") for each in found]


class _Copies:
    """What the allocator uses of a model: whole copies of the adapters, with their gradients."""

    def __init__(self, named: list[tuple[str, nn.Parameter]]) -> None:
        self._named = []
        for name, param in named:
            copy = nn.Parameter(safe_get_full_fp32_param(param).to(param.dtype), requires_grad=False)
            copy.grad = safe_get_full_grad(param)
            self._named.append((name, copy))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._named


@contextmanager
def _copies(named: list[tuple[str, nn.Parameter]]) -> Iterator[_Copies]:
    """Writes to the copies of "lora_E", whose entries the allocator sets to 0, become the parameters' at the end."""
    copies = _Copies(named)
    yield copies
    for (name, param), (_, copy) in zip(named, copies.named_parameters(), strict=True):
        if "lora_E" in name:
            masked = safe_get_full_fp32_param(param)
            safe_set_full_fp32_param(param, masked.masked_fill_(copy == 0, 0))


def _on_copies(own: Callable[..., Any], self: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    named = _adapters_of(model, self.adapter_name)
    if not named:
        return own(self, model, *args, **kwargs)
    with _copies(named) as copies:
        return own(self, copies, *args, **kwargs)
