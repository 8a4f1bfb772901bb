"""Implements ``ds_report``, which prints the versions, transports and devices of this host."""

from __future__ import annotations

import os
import platform
import sys

import torch
import torch.distributed as dist

from .. import _C
from .alias import PATH, STANDS_FOR


def _devices() -> list[tuple[str, str]]:
    if not torch.cuda.is_available():
        return [("device", f"CPU, {len(os.sched_getaffinity(0))} cores for this process")]
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [(f"device {index}", f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB") for index, gpu in enumerate(found)]


def main() -> None:
    """Prints the report."""
    transports = ["shared memory (ranks of one host)", "gloo" if dist.is_gloo_available() else ""]
    if torch.cuda.is_available() and dist.is_nccl_available():
        transports.append("nccl " + ".".join(map(str, torch.cuda.nccl.version())))
    lines = [
        ("zeroshard", f"{_C.__version__}, which provides deepspeed as release {STANDS_FOR}"),
        ("deepspeed is in", PATH),
        ("torch", f"{torch.__version__}, in {os.path.dirname(torch.__file__)}"),
        ("torch's CUDA", torch.version.cuda or "none"),
        ("python", f"{platform.python_version()}, {sys.executable}"),
        ("transports", ", ".join(filter(None, transports))),
        *_devices(),
    ]
    for name, value in lines:
        print(f"{name + ' ':.<20} {value}")


cli_main = main

if __name__ == "__main__":
    main()
