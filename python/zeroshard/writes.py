"""Records, while a model is built, which tensors have values and which tensors have lost values."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

INITIALIZERS = ("reset_parameters", "_reset_parameters", "_init_weights")  # materialize() calls these a second time
_OVERWRITES = ("normal_", "uniform_", "fill_", "zero_", "copy_", "eye")
_EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
_COPIES = ("clone", "_to_copy")


class Writes(TorchDispatchMode):
    """Records which tensors were never written, and which meta tensors lose values.

    A write to a tensor without memory is lost. Only the writes of initializers can be repeated, because initializers
    can be called a second time. The records are attributes of the storage, because views also write to the storage.
    ``mark()`` copies the record of lost values to the parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.params = WeakIdKeyDictionary()  # parameters on the meta device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # with True, torch would import torch._dynamo, which takes longer than building most models

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if func._schema.is_mutable:
            for tensor in _written_by(func, args, kwargs):
                self._note(name, tensor)
        elif name in _EMPTY:
            _mark(result, "_zeroshard_unwritten")
        else:
            given = _tensors((args, kwargs))
            if name in _COPIES and any(is_unwritten(tensor) for tensor in given):
                _mark(result, "_zeroshard_unwritten")
            on_meta = [tensor for tensor in given if tensor.is_meta]
            if any(is_lost(tensor) for tensor in on_meta):
                _mark(result, "_zeroshard_lost")  # because the result can be a copy or a view
            if any(is_initialized(tensor) for tensor in on_meta):
                _mark(result, "_zeroshard_initialized")
        return result

    def mark(self) -> None:
        """Records in every parameter whether it has lost values, and its version, by which later writes are found."""
        for param in self.params:
            param._zeroshard_lost = is_lost(param)
            param._zeroshard_version = param._version

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        storage._zeroshard_unwritten = False
        if not tensor.is_meta:
            return
        if not _inside_initializer():
            storage._zeroshard_lost = True
        else:
            storage._zeroshard_initialized = True
            if name in _OVERWRITES and tensor.nbytes == storage.nbytes():
                storage._zeroshard_lost = False
        base = tensor if tensor._base is None else tensor._base
        if isinstance(base, nn.Parameter):
            self.params[base] = True


def is_unwritten(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor comes from ``torch.empty`` or a similar call, so that its values are arbitrary."""
    return torch._C._has_storage(tensor) and getattr(tensor.untyped_storage(), "_zeroshard_unwritten", False)


def is_lost(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor has lost a write on the meta device that no initializer will repeat."""
    return getattr(tensor, "_zeroshard_lost", False) or getattr(tensor.untyped_storage(), "_zeroshard_lost", False)


def is_initialized(tensor: torch.Tensor) -> bool:
    """Returns whether an initializer has written to the tensor on the meta device."""
    return getattr(tensor.untyped_storage(), "_zeroshard_initialized", False)


def was_written_after(tensor: torch.Tensor) -> bool:
    """Returns whether anybody wrote to the tensor in place after the ``Init`` context in which it was made."""
    return tensor._version != getattr(tensor, "_zeroshard_version", tensor._version)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor) and torch._C._has_storage(leaf)]


def _mark(tree: Any, note: str) -> None:
    for tensor in _tensors(tree):
        setattr(tensor.untyped_storage(), note, True)


def _written_by(func: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    written = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += _tensors(args[index] if index < len(args) else kwargs.get(argument.name))
    return written


def _inside_initializer() -> bool:
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name not in INITIALIZERS:
        frame = frame.f_back
    return frame is not None
