"""Devices by name, for tests whose bodies run on a GPU, on the simulated device and on the CPU alike."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
import simulated
import torch
from torch import nn

NEEDS_GPU = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
NEEDS_SIMULATED = pytest.mark.skipif(simulated.library() is None, reason="this build has no simulated device")
CUDA = pytest.param("cuda", marks=NEEDS_GPU)
SIMULATED = pytest.param("simulated", marks=NEEDS_SIMULATED)


@contextlib.contextmanager
def use(name: str, shared: bool = False) -> Iterator[torch.device]:
    """On a rank: the device of that name. `shared`: all ranks use the first GPU, and meet over Gloo."""
    if name == "simulated":
        with simulated.device(simulated.Schedule.LATE) as device:
            yield device
        return
    if name == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else zeroshard would take the GPU
    if name == "cuda" and shared:
        import datetime

        torch.cuda.set_device(0)
        torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
    yield torch.device(name, 0) if name == "cuda" else torch.device(name)


@contextlib.contextmanager
def stream(device: torch.device, new: bool) -> Iterator[None]:
    """A new current stream, if `new`; it waits for the one before, and that for it at the end."""
    if device.type != "cuda":
        with simulated.stream(device, new and device.type != "cpu"):
            yield
        return
    before = torch.cuda.current_stream()
    own = torch.cuda.Stream() if new else before
    own.wait_stream(before)
    with torch.cuda.stream(own):
        yield
    before.wait_stream(own)


class Scaled(nn.Module):
    """Element by element: relu(x * weight + bias) + x."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape) * 0.5 + 1)
        self.bias = nn.Parameter(torch.randn(shape) * 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * self.weight + self.bias) + x


class Elementwise(nn.Module):
    """A model whose gradients have the same bits on every device: IEEE fixes each operation, and nothing is summed."""

    def __init__(self, rows: int = 5, width: int = 211, layers: int = 4) -> None:
        super().__init__()
        self.shape = (rows, width)
        self.layers = nn.ModuleList([Scaled(self.shape) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def elementwise(seed: int = 0, **sizes) -> Elementwise:
    torch.manual_seed(seed)
    return Elementwise(**sizes)


def elementwise_loss(engine: nn.Module, device: torch.device, step: int, rank: int, dtype: str) -> torch.Tensor:
    """Its value may depend on the device, its gradients do not."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x, target = torch.randn(2, *engine.module.shape, generator=generator).to(device)
    return (engine(x.bfloat16() if dtype == "bf16" else x).float() * target).sum()
