"""Handles the dtype in which a module computes, and inputs that have another dtype."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import _C

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_TORCH_NAMES = {"fp16": "Half", "bf16": "BFloat16"}


def cast_floats(inputs: Any, dtype: str) -> Any:
    """Returns ``inputs`` with all floating-point tensors in ``dtype``."""

    def cast(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(DTYPES[dtype]) if is_float else value

    return pytree.tree_map(cast, inputs)


def autocast(config: _C.Config, device: torch.device) -> AbstractContextManager[Any]:
    """Returns ``torch.autocast`` if the configuration asks for it (``torch_autocast``), else a null context."""
    dtype = config.autocast_dtype
    return torch.autocast(device.type, DTYPES[dtype]) if dtype is not None else nullcontext()


def explain_dtypes(error: RuntimeError, config: _C.Config) -> None:
    """Adds advice to torch's error about fp32 inputs of a module that computes in 16 bits. Changes no other error."""
    dtype, text = config.compute_dtype, str(error)
    is_mixed = "float" in text.lower().replace("bfloat16", "") and _TORCH_NAMES.get(dtype, "no name") in text
    if is_mixed and hasattr(error, "add_note"):  # add_note() exists since Python 3.11
        error.add_note(
            f"[zeroshard] the parameters are in {dtype}, as {dtype}.enabled asks, and an input of the forward is not: "
            f"cast it, or set {dtype}.auto_cast, which casts the floating-point inputs of every forward"
        )
