"""Adapts AdaLoRA of peft to stage 3.

AdaLoRA reads adapters in the forward, and reads and masks adapters after a step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import groupby
from typing import Any

import torch
from torch import nn

from ..gathering import gathered
from ..marks import mark_of, unit_of
from ..wrapping import wrap_once
from .fragments import safe_get_full_fp32_param, safe_get_full_grad, safe_set_full_fp32_param

_ADAPTERS = ("lora_A", "lora_B", "lora_E")


def read_adapters() -> None:
    """Makes the model and the allocator of AdaLoRA work on sharded adapters, if they are imported."""
    model = getattr(sys.modules.get("peft.tuners.adalora.model"), "AdaLoraModel", None)
    allocator = getattr(sys.modules.get("peft.tuners.adalora.layer"), "RankAllocator", None)
    wrap_once(model, "forward", _forward)
    wrap_once(allocator, "update_and_allocate", _update)
    wrap_once(allocator, "mask_using_rank_pattern", _mask)


def _adapters_of(model: nn.Module, adapter: str) -> list[tuple[str, nn.Parameter]]:
    """Returns the named parameters of an adapter if an engine has sharded some of them, else an empty list."""
    named = [
        (name, param)
        for name, param in model.named_parameters()
        if adapter in name and any(kind in name for kind in _ADAPTERS)
    ]
    marks = [mark for _, param in named if (mark := mark_of(param)) is not None]
    return named if any(not mark.core().is_replicated(mark.unit) for mark in marks) else []


def _forward(own: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    adapter = getattr(self, "trainable_adapter_name", None)
    weight = getattr(self.peft_config.get(adapter), "orth_reg_weight", -1)
    named = _adapters_of(self.model, adapter) if weight >= 0 else []  # peft's own forward refuses a weight below 0
    if not named:
        return own(self, *args, **kwargs)
    outputs = self.model.forward(*args, **kwargs)
    if isinstance(getattr(outputs, "loss", None), torch.Tensor):
        matrices = [(name, param) for name, param in named if "lora_E" not in name]
        outputs.loss += weight * torch.stack(_distances(matrices)).mean()
    return outputs


def _distances(named: list[tuple[str, nn.Parameter]]) -> list[torch.Tensor]:
    """Returns how far the rows of each A and the columns of each B are from orthonormal.

    The distance is the norm of A A^T - I or B^T B - I (equation 4 of the AdaLoRA paper,
    https://openreview.net/pdf?id=lq62uWRJjiY, but like peft without the square of the norm). The function gathers one
    unit at a time.
    """
    found = []
    for _, of_unit in groupby(named, key=lambda each: unit_of(mark_of(each[1]))):
        params, made = list(of_unit), []
        with _reading(params[0][1], made):
            for name, param in params:
                made.append(param @ param.T if "lora_A" in name else param.T @ param)
        found += made
    return [torch.norm(each - torch.eye(len(each), dtype=each.dtype, device=each.device), p="fro") for each in found]


def _reading(param: nn.Parameter, made: list[torch.Tensor]) -> AbstractContextManager[None]:
    """Gathers the parameter's unit in this context, and for the backward of the tensors that ``made`` has at the end.

    Does nothing if no engine has the parameter.
    """
    mark = mark_of(param)
    return nullcontext() if mark is None else mark.owner().readers.reading(mark.unit, made)


def _was_applied(param: nn.Parameter) -> bool:
    """Returns whether the last step was applied, so that all gradients are finite. Without an engine, returns True."""
    mark = mark_of(param)
    run = mark.owner().run if mark is not None else None
    return run is None or run.applied


class _Copies:
    """Replaces a model for the allocator. Has whole copies of the adapters in fp32.

    With ``with_gradients`` the copies have gradients, which are 0 if there is none or if the last step was skipped.
    """

    def __init__(self, named: list[tuple[str, nn.Parameter]], *, with_gradients: bool) -> None:
        self._named = []
        for name, param in named:
            values = safe_get_full_fp32_param(param)
            if values is None:  # the parameter is not trained
                with gathered([param]):
                    values = param.detach().float().clone()
            copy = nn.Parameter(values, requires_grad=False)
            if with_gradients:
                grad = safe_get_full_grad(param)
                copy.grad = grad.float() if grad is not None and _was_applied(param) else torch.zeros_like(values)
            self._named.append((name, copy))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._named


@contextmanager
def _copies(named: list[tuple[str, nn.Parameter]], *, with_gradients: bool) -> Iterator[_Copies]:
    """Yields copies of adapters. At the end, writes changed copies of "lora_E" back to the parameters.

    The allocator changes only "lora_E", of which it sets some entries to 0.
    """
    copies = _Copies(named, with_gradients=with_gradients)
    before = {name: copy.clone() for name, copy in copies.named_parameters() if "lora_E" in name}
    yield copies
    for (name, param), (_, copy) in zip(named, copies.named_parameters(), strict=True):
        if name in before and not torch.equal(before[name], copy):
            safe_set_full_fp32_param(param, copy)


def _update(own: Callable[..., Any], self: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    named = _adapters_of(model, self.adapter_name)
    with _copies(named, with_gradients=True) if named else nullcontext(model) as read:
        return own(self, read, *args, **kwargs)


def _mask(own: Callable[..., Any], self: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    named = [(name, param) for name, param in _adapters_of(model, self.adapter_name) if "lora_E" in name]
    with _copies(named, with_gradients=False) if named else nullcontext(model) as read:
        return own(self, read, *args, **kwargs)
