"""Finds the core of this package, which is its compiled part, in a folder such as ``cores/torch_2_13_cu13``.

A package can have several cores. Each is for one minor version of torch, either without CUDA (``_cpu``) or with one
major version of CUDA. With another torch a core might not load, or it might compute wrong results. This file imports
neither torch nor other files of zeroshard, because ``zeroshard-torch`` runs it by itself.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys
from collections.abc import Iterable


def find_core(package: Iterable[str], torch_version: str, cuda: str | None) -> pathlib.Path:
    """Returns the folder of the core for a torch with this ``torch.__version__`` and ``torch.version.cuda``.

    ``package`` has the folders of the package zeroshard. If there is no core with CUDA, a torch with CUDA gets a core
    without it. Ranks then train on the CPU, or on GPUs without zeroshard's own kernels. Raises ``ImportError``, which
    lists the existing cores, if none of them is for this torch.
    """
    found = [core for folder in package for core in pathlib.Path(folder).glob("cores/*")]
    cores = {core.name: core for core in found if re.fullmatch(r"torch_\d+_\d+_(cpu|cu\d+)", core.name)}
    minor = "_".join(re.findall(r"\d+", torch_version)[:2])
    wanted = f"torch_{minor}_cu{cuda.split('.')[0]}" if cuda else f"torch_{minor}_cpu"
    if cuda and not any("_cu" in name for name in cores):
        wanted = f"torch_{minor}_cpu"
    if wanted in cores:
        return cores[wanted]
    there = f"torch is {torch_version} with CUDA {cuda}" if cuda else f"torch is {torch_version}"
    raise ImportError(
        f"this zeroshard was built for {_listed(cores)}, and {there}: install a torch that it was built for, or build "
        "zeroshard beside this torch (make build, or pip install --no-build-isolation .)"
    )


def _listed(cores: Iterable[str]) -> str:
    """Returns text for the names of ``cores``, such as ``torch 2.13 (cpu, cu13), 2.15 (cpu)``."""
    variants: dict[tuple[int, int], list[str]] = {}
    for name in sorted(cores):
        _, major, minor, variant = name.split("_")
        variants.setdefault((int(major), int(minor)), []).append(variant)
    texts = [f"{major}.{minor} ({', '.join(variants[major, minor])})" for major, minor in sorted(variants)]
    return f"torch {', '.join(texts)}" if texts else "no torch"


def become_program() -> None:
    """Replaces this process by the program ``zeroshard-torch`` for this Python's torch. Does not import torch."""
    import importlib.util
    import runpy
    import signal

    def folders(package: str) -> list[str]:
        found = importlib.util.find_spec(package)
        return list(found.submodule_search_locations or []) if found else []

    try:
        versions = [pathlib.Path(folder) / "version.py" for folder in folders("torch")]
        torch = next((version.parent for version in versions if version.exists()), None)
        if torch is None:
            raise ImportError(f"{sys.executable} has no torch: pip install torch")
        version = runpy.run_path(str(torch / "version.py"))
        core = find_core(folders("zeroshard"), version["__version__"], version["cuda"])
        program = core / "zeroshard-torch"
        if not program.exists():
            raise ImportError(f"there is no {program}: this zeroshard was built without it (make package builds it)")
    except ImportError as error:
        sys.exit(f"zeroshard-torch: {error}")
    if (core.parents[2] / "torch").resolve() != torch.resolve():  # the program by itself looks for LibTorch there
        libraries = [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
        paths = [*map(str, libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        os.environ["LD_LIBRARY_PATH"] = ":".join(paths)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the program would inherit that
        signal.signal(ignored, signal.SIG_DFL)
    os.execv(program, [str(program), *sys.argv[1:]])
