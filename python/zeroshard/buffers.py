"""The copies of the model's buffers that an engine uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from .names import plain_name, plain_names


@dataclass
class Buffer:
    owner: nn.Module
    name: str  # in the owner
    path: str
    values: torch.Tensor

    def place(self) -> None:
        self.owner._buffers[self.name] = self.values


def find_buffers(model: nn.Module, device: torch.device, compute_dtype: str) -> list[Buffer]:
    """All buffers on ``device``, in the dtype for training in ``compute_dtype``. The model's own buffers do not change.

    Raises ``ValueError`` for a buffer on the meta device.
    """
    found = []
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            path = f"{prefix}.{name}" if prefix else name
            if buffer.is_meta:
                raise ValueError(
                    f"buffer '{plain_name(path)}' is on the meta device, where it has no value: build the model inside "
                    "zeroshard.Init(), which computes buffers and leaves only parameters without memory, or "
                    "outside of it when a buffer is computed from parameters"
                )
            dtype = buffer.dtype
            # BatchNorm kernels need statistics in the dtype of the weights, and a frozen BatchNorm has only buffers.
            if "BatchNorm" in type(module).__name__ and buffer.is_floating_point():
                dtype = {"fp16": torch.half, "bf16": torch.bfloat16}.get(compute_dtype, dtype)
            placed = buffer if buffer.device == device and buffer.dtype == dtype else buffer.to(device, dtype)
            found.append(Buffer(module, name, path, placed))
    plain = plain_names((buffer.path, id(buffer.values)) for buffer in found)
    for buffer in found:
        buffer.path = plain[buffer.path]
    return found


def named(buffers: list[Buffer]) -> list[tuple[str, torch.Tensor]]:
    """Each tensor once, with the first of its paths."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for buffer in buffers:
        found.setdefault(id(buffer.values), (buffer.path, buffer.values))
    return list(found.values())
