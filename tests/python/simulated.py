"""The simulated accelerator (docs/design/device.md) as a device of torch, for tests of the Python front.

Each rank has the device of its local rank. Torch's name of its backend for collectives is the device's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import importlib.util
import itertools
import os
import pathlib
import types
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader

import pytest
import torch
import torch.distributed as dist

_NAME = "zs_simulated_device"
DEVICE = "simulated"
_ANSWERS_THE_HOST = " for aten::equal"  # a bool


class Schedule(enum.IntEnum):
    """When the work of a stream runs; as in tests/support/accelerator/streams.h."""

    EAGER = 0
    LATE = 1
    LAZY = 2


def library() -> pathlib.Path | None:
    """The compiled device, if this build has it."""
    folder = pathlib.Path(os.environ.get("ZEROSHARD_BUILD_DIR", "build/release")) / "tests"
    return next((path.resolve() for path in folder.glob(f"{_NAME}*.so")), None)


needed = pytest.mark.skipif(library() is None, reason="this build has no simulated device")


def case(*values: object) -> object:
    """A test's parameters that need the device; the value of `on` is what world.run takes."""
    return pytest.param(*values, marks=needed)


def at_stages(*stages: int) -> list:
    """Parameters "stage,on": every schedule in turn."""
    return [case(stage, on) for stage, on in zip(stages, itertools.cycle(["late", "lazy"]), strict=False)]


@contextlib.contextmanager
def device(schedule: Schedule, seed: int = 3) -> Iterator[torch.device]:
    """This rank's. At the end, raises AssertionError where streams have raced or an operator made the host wait."""
    loaded = _loaded()
    loaded.start(int(schedule), seed)
    if not hasattr(torch, DEVICE):
        _tell_torch(loaded)
    index = int(os.environ.get("LOCAL_RANK", "0"))
    torch.accelerator.set_device_index(index)
    yield torch.device(DEVICE, index)
    findings = [finding for finding in loaded.findings() if not finding.endswith(_ANSWERS_THE_HOST)]
    assert not findings, "\n".join(findings)


def allocated_bytes(device: torch.device) -> int:
    """Of the device's memory, as it was asked for."""
    return _loaded().allocated_bytes(device.index)


def peak_bytes(device: torch.device) -> int:
    """The most that was allocated at one time since ``reset_peak``."""
    return _loaded().peak_bytes(device.index)


def reset_peak(device: torch.device) -> None:
    _loaded().reset_peak(device.index)


@functools.cache
def _loaded() -> types.ModuleType:
    import zeroshard

    # The kernels that the device brings are entered in a table of the extension: both must be the same program's.
    ctypes.CDLL(zeroshard._C.__file__, mode=ctypes.RTLD_GLOBAL)
    loader = ExtensionFileLoader(_NAME, str(library()))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(_NAME, loader))
    loader.exec_module(module)
    return module


def _tell_torch(loaded: types.ModuleType) -> None:
    module = types.ModuleType(f"torch.{DEVICE}")
    # The device has no generator of its own: its random numbers are the CPU's.
    module.get_rng_state = lambda _=None: torch.get_rng_state()
    module.set_rng_state = lambda state, _=None: torch.set_rng_state(state)
    module.mem_get_info = lambda _=None: (2**32, 2**32)
    module.is_available = lambda: True
    module.current_device = loaded.current_device
    module.set_device = loaded.set_device
    module.device_count = loaded.device_count
    module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda _: None
    module.is_bf16_supported = lambda: True
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    torch._register_device_module(DEVICE, module)
    dist.Backend.register_backend(
        DEVICE,
        lambda store, rank, size, _: loaded.make_backend(store, rank, size, loaded.current_device()),
        devices=[DEVICE],
    )


@contextlib.contextmanager
def stream(device: torch.device, new: bool) -> Iterator[None]:
    """A new current stream, if ``new``; it waits for the one before, and that for it at the end."""
    if not new:
        yield
        return
    before, own = torch.accelerator.current_stream(device), torch.Stream(device)
    own.wait_stream(before)
    with own:
        yield
    before.wait_stream(own)
