"""Moves the inputs of checkpointed layers out of memory until the backward pass (``zeroshard.offload.activations``)."""

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

# Taken at import, because other code can replace torch's function later.
from torch.utils.checkpoint import checkpoint as _torch_checkpoint

from . import _C


class _Thread(threading.local):
    keeper: Keeper | None = None  # keeper of the engine whose forward runs on this thread
    recomputes = False  # true inside a function that the backward pass will compute a second time


_thread = _Thread()


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Does the same as ``torch.utils.checkpoint.checkpoint``, with the same arguments and the same result.

    In a training forward of an engine with ``zeroshard.offload.activations``, each of ``args`` that is a tensor and
    requires a gradient leaves memory until the backward pass needs it, unless it is a parameter, is small or has gaps
    in its memory. Outside of such a forward, and inside a function that is itself recomputed, only calls torch's
    ``checkpoint``.

    >>> block = torch.nn.Linear(32, 32)
    >>> hidden = torch.randn(2, 32, requires_grad=True)
    >>> hidden = zeroshard.recompute(block, hidden, use_reentrant=False)
    """
    return _checkpointed(_thread.keeper, _torch_checkpoint, function, args, kwargs)


class Keeper:
    """Moves the inputs of checkpointed parts of an engine's model out of memory.

    The parts are the functions that the model gives to ``recompute``, and the modules that transformers checkpoints.
    """

    def __init__(self, model: nn.Module, core: _C.Engine) -> None:
        self._core: _C.Engine | None = core
        # Models of transformers call the attribute _gradient_checkpointing_func of these modules.
        self._modules = [module for module in model.modules() if hasattr(module, "gradient_checkpointing")]

    @contextmanager
    def in_forward(self) -> Iterator[None]:
        """Surrounds the model's forward for training.

        Replaces the model's checkpointing functions each time, because scripts can enable checkpointing at any time.
        """
        for module, function in self._functions():
            if not isinstance(function, _Checkpoint):
                module._gradient_checkpointing_func = _Checkpoint(self, function)
            elif function.keeper() is not self:  # an earlier engine has put this function here
                module._gradient_checkpointing_func = _Checkpoint(self, function.inner)
        before, _thread.keeper = _thread.keeper, self
        try:
            yield
        finally:
            _thread.keeper = before

    def end(self) -> None:
        """Gives the model its own checkpointing functions back, because the engine has ended."""
        for module, function in self._functions():
            if isinstance(function, _Checkpoint):
                module._gradient_checkpointing_func = function.inner
        self._core = None

    def _functions(self) -> Iterator[tuple[nn.Module, Callable]]:
        for module in self._modules:
            if (function := vars(module).get("_gradient_checkpointing_func")) is not None:
                yield module, function

    def pack(self, tensor: torch.Tensor) -> _Stayed | _C.KeptTensor:
        # Moves neither parameters nor tensors of other subclasses. Does not move tensors that require no gradient, such
        # as masks, either, because many layers get the same tensor.
        if _thread.recomputes or type(tensor) is not torch.Tensor or not tensor.requires_grad or self._core is None:
            return _Stayed(tensor)
        kept = self._core.keep(tensor)
        return _Stayed(tensor) if kept is None else kept


class _Stayed:
    """Keeps a tensor in memory, and detects writes to it, because torch does not check tensors that hooks keep."""

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
    """Replaces a model's checkpointing function. A copy of the model gets back the original function."""

    def __init__(self, keeper: Keeper, inner: Callable) -> None:
        functools.update_wrapper(self, inner, updated=())
        self.keeper, self.inner = weakref.ref(keeper), inner  # weak, because the model can outlive the engine
        # Not done at import, because disable() makes torch import its compiler.
        self._checkpointed = torch.compiler.disable(_checkpointed)

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._checkpointed(self.keeper(), self.inner, function, args, kwargs)

    def __reduce_ex__(self, protocol: int) -> tuple[Any, ...]:
        return _same, (self.inner,)


class _Part:
    """A function that the backward pass computes a second time. Checkpoints inside of it are always torch's own."""

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
    # These hooks get the inputs of the function. The tensors that autograd saves inside the function go to the hooks of
    # `checkpoint` instead.
    with saved_tensors_hooks(keeper.pack, _unpack):
        return checkpoint(_Part(function), *args, **kwargs)


def _unpack(kept: _Stayed | _C.KeptTensor) -> torch.Tensor:
    return kept.bring_back()


def _same(function: Callable) -> Callable:
    return function
