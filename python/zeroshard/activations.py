"""Checkpointed layers whose inputs leave memory between forward and backward (``zeroshard.offload.activations``)."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as _torch_checkpoint  # now: recompute may take its place later

from . import _C


class _Thread(threading.local):
    keeper: Keeper | None = None  # of the engine whose forward runs
    recomputes = False  # within a function that is computed again in backward


_thread = _Thread()


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch.utils.checkpoint.checkpoint``, with the same arguments and the same result.

    In the forward of an engine with ``zeroshard.offload.activations`` those of ``args`` that are tensors with a
    gradient leave memory until the backward pass needs them. Elsewhere it is torch's own.

    >>> hidden = zeroshard.recompute(block, hidden, use_reentrant=False)
    """
    return _checkpointed(_thread.keeper, _torch_checkpoint, function, args, kwargs)


class Keeper:
    """Moves what checkpoints of an engine's model keep, also those of the model's own gradient checkpointing."""

    def __init__(self, model: nn.Module, core: _C.Engine) -> None:
        self._core: _C.Engine | None = core
        # Models of transformers call what these have as _gradient_checkpointing_func.
        self._modules = [module for module in model.modules() if hasattr(module, "gradient_checkpointing")]

    @contextmanager
    def in_forward(self) -> Iterator[None]:
        """Around the model's forward for training. Checkpointing may have been enabled just before it."""
        for module, function in self._functions():
            if not isinstance(function, _Checkpoint):
                module._gradient_checkpointing_func = _Checkpoint(self, function)
            elif function.keeper() is not self:  # of an engine before this one
                module._gradient_checkpointing_func = _Checkpoint(self, function.inner)
        before, _thread.keeper = _thread.keeper, self
        try:
            yield
        finally:
            _thread.keeper = before

    def end(self) -> None:
        """The engine has ended: its model gets its own functions back."""
        for module, function in self._functions():
            if isinstance(function, _Checkpoint):
                module._gradient_checkpointing_func = function.inner
        self._core = None

    def _functions(self) -> Iterator[tuple[nn.Module, Callable]]:
        for module in self._modules:
            if (function := vars(module).get("_gradient_checkpointing_func")) is not None:
                yield module, function

    def pack(self, tensor: torch.Tensor) -> _Stayed | _C.KeptTensor:
        # Parameters and tensors of other classes stay, and what many layers are given without a gradient, as masks are.
        if _thread.recomputes or type(tensor) is not torch.Tensor or not tensor.requires_grad or self._core is None:
            return _Stayed(tensor)
        kept = self._core.keep(tensor)
        return _Stayed(tensor) if kept is None else kept


class _Stayed:
    """A tensor that stays in memory. torch itself compares versions only of what it saves without hooks."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = tensor, tensor._version

    def bring_back(self) -> torch.Tensor:
        if self._tensor._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: an "
                f"argument of a checkpointed part, a {self._tensor.dtype} of shape {tuple(self._tensor.shape)}, is at "
                f"version {self._tensor._version}; expected version {self._version} instead"
            )
        return self._tensor


class _Checkpoint:
    """Takes the place of a model's checkpointing function. A copy of the model gets that."""

    def __init__(self, keeper: Keeper, inner: Callable) -> None:
        functools.update_wrapper(self, inner, updated=())
        self.keeper, self.inner = weakref.ref(keeper), inner  # the model may outlive the engine
        self._checkpointed = torch.compiler.disable(_checkpointed)  # here: torch imports its compiler for it

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._checkpointed(self.keeper(), self.inner, function, args, kwargs)

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        return _same, (self.inner,)


class _Part:
    """A function that is computed again in backward: checkpoints within it are torch's own, both times."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before, _thread.recomputes = _thread.recomputes, True
        try:
            return self._function(*args, **kwargs)
        finally:
            _thread.recomputes = before


def _checkpointed(
    keeper: Keeper | None, checkpoint: Callable[..., Any], function: Callable[..., Any], args: tuple, kwargs: dict
) -> Any:
    if keeper is None or _thread.recomputes or not torch.is_grad_enabled():
        return checkpoint(function, *args, **kwargs)
    # What is saved within the function goes to the hooks of `checkpoint` itself, or is not saved at all.
    with saved_tensors_hooks(keeper.pack, _unpack):
        return checkpoint(_Part(function), *args, **kwargs)


def _unpack(kept: _Stayed | _C.KeptTensor) -> torch.Tensor:
    return kept.bring_back()


def _same(function: Callable) -> Callable:
    return function
