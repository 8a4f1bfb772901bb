"""Implements ``deepspeed.accelerator``: the device of this process with DeepSpeed's names, for CUDA and the CPU."""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class Accelerator:
    """Has the functions that CUDA and the CPU share. They create a CUDA context only if the answer needs one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def device_name(self, device_index: int | str | None = None) -> str:
        return self._name if device_index is None else f"{self._name}:{device_index}"

    def device(self, device_index: int | None = None) -> torch.device:
        return torch.device(self.device_name(device_index))

    def communication_backend_name(self) -> str:
        return {"cuda": "nccl", "cpu": "gloo"}[self._name]

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    def is_synchronized_device(self) -> bool:
        return self._name == "cpu"

    use_host_timers = resolves_data_dependency = handles_memory_backpressure = is_synchronized_device

    def random(self) -> Any:
        return torch.random

    def supported_dtypes(self) -> list[torch.dtype]:
        found = [torch.float]
        found += [torch.half] if self.is_fp16_supported() else []
        return found + ([torch.bfloat16] if self.is_bf16_supported() else [])

    def visible_devices_envs(self) -> list[str]:
        return ["CUDA_VISIBLE_DEVICES"]

    def get_compile_backend(self) -> str:
        return "inductor"

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        return callback()


class CudaAccelerator(Accelerator):
    """Has the functions for CUDA. The functions that ``_OWN`` names are those of ``torch.cuda``."""

    _OWN = frozenset(
        [
            "Event",
            "Stream",
            "current_device",
            "current_stream",
            "default_stream",
            "device_count",
            "empty_cache",
            "get_rng_state",
            "initial_seed",
            "is_available",
            "is_bf16_supported",
            "manual_seed",
            "manual_seed_all",
            "max_memory_allocated",
            "max_memory_reserved",
            "memory_allocated",
            "memory_reserved",
            "memory_stats",
            "reset_max_memory_allocated",
            "reset_peak_memory_stats",
            "set_device",
            "set_rng_state",
            "stream",
            "synchronize",
        ]
    )

    def __init__(self) -> None:
        super().__init__("cuda")

    def __getattr__(self, name: str) -> Any:
        if name not in CudaAccelerator._OWN:
            raise AttributeError(f"get_accelerator() of zeroshard has no '{name}'")
        return getattr(torch.cuda, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *CudaAccelerator._OWN})

    def current_device_name(self) -> str:
        return f"cuda:{torch.cuda.current_device()}"

    def communication_backend_version(self) -> Any:
        return torch.cuda.nccl.version()

    def default_generator(self, device_index: int) -> torch.Generator:
        return torch.cuda.default_generators[device_index]

    def memory_cached(self, device_index: int | None = None) -> int:
        return torch.cuda.memory_reserved(device_index)

    def max_memory_cached(self, device_index: int | None = None) -> int:
        return torch.cuda.max_memory_reserved(device_index)

    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        torch.cuda.reset_peak_memory_stats(device_index)

    def total_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.mem_get_info(device_index)[1]

    def available_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.mem_get_info(device_index)[0]

    def is_fp16_supported(self) -> bool:
        return torch.cuda.get_device_capability()[0] >= 7

    def is_triton_supported(self) -> bool:
        return torch.cuda.get_device_capability()[0] >= 8

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> Any:
        return torch.cuda.nvtx.range_push(msg)

    def range_pop(self, domain: Any = None) -> Any:
        return torch.cuda.nvtx.range_pop()

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        return tensor.pin_memory()

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()


class CpuAccelerator(Accelerator):
    """Has the functions for the CPU, which counts as one device per rank of this host.

    Allocated memory is the resident memory of the process. Total and available memory are those of the host.
    """

    Stream = Event = None

    def __init__(self) -> None:
        super().__init__("cpu")

    def device_name(self, device_index: int | str | None = None) -> str:
        return "cpu"

    def current_device_name(self) -> str:
        return "cpu"

    def current_device(self) -> str:
        return "cpu"

    def set_device(self, device_index: Any) -> None:
        """Does nothing, because a rank on the CPU has only one device."""

    def device_count(self) -> int:
        return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)

    def is_available(self) -> bool:
        return True

    def synchronize(self, device_index: Any = None) -> None:
        """Does nothing, because operations have ended when they return."""

    def empty_cache(self) -> None:
        """Does nothing, because unused memory is freed automatically."""

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def current_stream(self, device_index: Any = None) -> None:
        return None

    def default_stream(self, device_index: Any = None) -> None:
        return None

    def manual_seed(self, seed: int) -> torch.Generator:
        return torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def default_generator(self, device_index: Any = None) -> torch.Generator:
        return torch.default_generator

    def get_rng_state(self, device_index: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device_index: Any = None) -> None:
        torch.set_rng_state(new_state)

    def memory_allocated(self, device_index: Any = None) -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    memory_reserved = memory_cached = memory_allocated

    def max_memory_allocated(self, device_index: Any = None) -> int:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # the kernel updates ru_maxrss only sometimes
        return max(peak, self.memory_allocated())

    max_memory_reserved = max_memory_cached = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: Any = None) -> None:
        """Does nothing, because the kernel keeps the peak of the whole process."""

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def memory_stats(self, device_index: Any = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self.memory_allocated(),
            "allocated_bytes.all.peak": self.max_memory_allocated(),
        }

    def total_memory(self, device_index: Any = None) -> int:
        return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()

    def available_memory(self, device_index: Any = None) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * resource.getpagesize()

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def is_triton_supported(self) -> bool:
        return False

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> None:
        """Does nothing, because there is no profiler of the device."""

    def range_pop(self, domain: Any = None) -> None:
        """Does nothing, because there is no profiler of the device."""

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return False


@functools.cache
def get_accelerator() -> Accelerator:
    """Returns the accelerator for CUDA if there is a GPU, else for the CPU. DS_ACCELERATOR overrides the choice.

    Raises ``ValueError`` for another DS_ACCELERATOR than "cuda" and "cpu".
    """
    name = os.environ.get("DS_ACCELERATOR", "")
    if name not in ("", "cpu", "cuda"):
        raise ValueError(f"DS_ACCELERATOR is '{name}', expected 'cuda' or 'cpu': zeroshard runs on these")
    if name == "":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return CudaAccelerator() if name == "cuda" else CpuAccelerator()


def is_current_accelerator_supported() -> bool:
    return True
