"""The simulated accelerator (docs/design/device.md) as a device of torch, for tests of the Python front."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import pathlib
import types
from collections.abc import Iterator

import torch

_LIBRARY = "tests/libzs_simulated_device.so"
DEVICE = "simulated"


class Schedule(enum.IntEnum):
    """When the work of a stream runs; as in tests/support/accelerator/streams.h."""

    EAGER = 0
    LATE = 1
    LAZY = 2


def library() -> pathlib.Path | None:
    """The compiled device, if this build has it."""
    path = pathlib.Path(os.environ.get("ZEROSHARD_BUILD_DIR", "build/release")) / _LIBRARY
    return path.resolve() if path.exists() else None


@contextlib.contextmanager
def device(schedule: Schedule, seed: int = 3) -> Iterator[torch.device]:
    """Device 0. At the end, raises AssertionError where streams have raced or an operator made the host wait."""
    loaded = ctypes.CDLL(str(library()))
    loaded.simulated_findings.restype = ctypes.c_char_p
    loaded.simulated_start(int(schedule), ctypes.c_uint64(seed))
    if not hasattr(torch, DEVICE):
        # The device has no generator of its own: its random numbers are the CPU's.
        module = types.ModuleType(f"torch.{DEVICE}")
        module.get_rng_state = lambda _=None: torch.get_rng_state()
        module.set_rng_state = lambda state, _=None: torch.set_rng_state(state)
        module.mem_get_info = lambda _=None: (2**32, 2**32)
        module.is_available = lambda: True
        module.current_device = lambda: 0
        module.device_count = lambda: 1
        module.is_initialized = lambda: True
        module._is_in_bad_fork = lambda: False
        module.manual_seed_all = lambda _: None
        module.is_bf16_supported = lambda: True
        module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
        torch._register_device_module(DEVICE, module)
    if not torch.distributed.is_initialized():  # torch knows no backend for this device
        torch.distributed.init_process_group("gloo")
    yield torch.device(DEVICE, 0)
    findings = loaded.simulated_findings().decode()
    assert not findings, findings


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
