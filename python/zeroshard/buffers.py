"""Finds a model's buffers, and chooses their dtypes and names for an engine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from . import _C
from .input_dtypes import DTYPES
from .names import plain_module, plain_name, plain_names


@dataclass
class Buffer:
    owner: nn.Module
    name: str  # name of the buffer in its owner
    path: str  # name of the buffer in the model
    values: torch.Tensor  # what place() puts into the model

    def place(self) -> None:
        self.owner._buffers[self.name] = self.values


def find_buffers(model: nn.Module, device: torch.device, parsed: _C.ParsedConfig) -> list[Buffer]:
    """Returns all buffers with values on ``device``, in the dtype that the configuration wants.

    The values are a copy, or the model's own buffer if its device and dtype are right. The model does not change.
    Raises ``ValueError`` for a buffer on the meta device.
    """
    found = []
    dtype_of = _chooser(model, parsed)
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            path = f"{prefix}.{name}" if prefix else name
            if buffer.is_meta:
                raise ValueError(
                    f"buffer '{plain_name(path)}' is on the meta device, where it has no value: build the model inside "
                    "zeroshard.Init(), which computes buffers and leaves only parameters without memory, or "
                    "outside of it when a buffer is computed from parameters"
                )
            dtype = dtype_of(module, path, buffer)
            placed = buffer if buffer.device == device and buffer.dtype == dtype else buffer.to(device, dtype)
            found.append(Buffer(module, name, path, placed))
    plain = plain_names((buffer.path, id(buffer.values)) for buffer in found)
    for buffer in found:
        buffer.path = plain[buffer.path]
    return found


def _chooser(model: nn.Module, parsed: _C.ParsedConfig) -> Callable[[nn.Module, str, torch.Tensor], torch.dtype]:
    """Returns a function that chooses a buffer's dtype from the buffer's module, its path and the buffer itself."""
    key = "data_types."
    given = {path.removeprefix(key): json.loads(value) for path, value, _ in parsed.values if path.startswith(key)}
    compute = parsed.config.compute_dtype
    is_of_model = given["keep_in_fp32_modules"] is None
    kept = _patterns(model, compute) if is_of_model else set(given["keep_in_fp32_modules"])
    source = "_keep_in_fp32_modules of the model" if is_of_model else "data_types.keep_in_fp32_modules"
    patterns = [_compiled(name, source) for name in sorted(kept)]
    wanted = DTYPES.get(given["buffer_dtype"])

    def choose(module: nn.Module, path: str, buffer: torch.Tensor) -> torch.dtype:
        if not buffer.is_floating_point():
            return buffer.dtype
        if compute != "fp32" and any(pattern.search(plain_name(path)) for pattern in patterns):
            return torch.float
        # The kernels of BatchNorm need statistics in the dtype of the weights, which is the compute dtype. So, without
        # a `buffer_dtype`, the floating-point buffers of such a module get this dtype. FrozenBatchNorm, for example,
        # also has its weights as buffers.
        if wanted is None and "BatchNorm" in type(module).__name__ and compute != "fp32":
            return DTYPES[compute]
        return wanted or buffer.dtype

    return choose


def _compiled(name: str, source: str) -> re.Pattern:
    try:
        return re.compile(name.replace("*", ".*"))
    except re.error as error:
        raise _C.ConfigError(
            f"{source} has {json.dumps(name)}, which is no pattern: {error}. Write a part of a buffer's name, in which "
            "* is any text, or a regular expression of Python's"
        ) from None


def _patterns(model: nn.Module, compute_dtype: str) -> set[str]:
    """Returns patterns for the names of buffers in modules that transformers keeps in fp32.

    Uses ``_keep_in_fp32_modules_strict`` for every dtype, and ``_keep_in_fp32_modules`` only for fp16, as transformers
    does.
    """
    found = set()
    for path, module in model.named_modules():
        names = set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
        if compute_dtype == "fp16":
            names |= set(getattr(module, "_keep_in_fp32_modules", None) or ())
        inside = f"^{re.escape(plain_module(path))}[.].*" if path else ""
        found |= {inside + name for name in names}
    return found


def named(buffers: list[Buffer]) -> list[tuple[str, torch.Tensor]]:
    """Returns each tensor of ``buffers`` once, with the first of its paths."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for buffer in buffers:
        found.setdefault(id(buffer.values), (buffer.path, buffer.values))
    return list(found.values())
