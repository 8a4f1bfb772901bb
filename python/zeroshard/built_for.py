"""Importing this module checks that torch is the release that the compiled part was built for.

With another release the compiled part may not load, or may compute wrong results.
"""

from __future__ import annotations

import re

import torch


def check_torch(built_for: str, torch_version: str) -> None:
    """Raises ``ImportError`` if the two releases differ. Variants and pre-releases do not count."""
    needed, found = _release(built_for), _release(torch_version)
    if needed != found:
        raise ImportError(
            f"this zeroshard was built for torch {needed}, and torch is {torch_version}: install torch {needed}, or "
            f"build zeroshard anew beside torch {found} (make build, or make wheel)"
        )


def _release(version: str) -> str:
    """The leading numbers of a version: a build knows no more of its torch."""
    return re.match(r"[0-9.]*[0-9]|", version)[0]


try:
    from ._built_for import TORCH
except ModuleNotFoundError:  # a build that runs from its build folder, without an installation
    pass
else:
    check_torch(TORCH, torch.__version__)
