"""Opens files that other programs have written."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO


def open_regular(path: str) -> BinaryIO:
    """Opens a regular file for reading. Raises ``ValueError`` for other files, because reading might never end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # O_NONBLOCK, because a FIFO would wait for a writer
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError(f"{path} is not a regular file")
    return os.fdopen(fd, "rb")


def named_below(directory: str, file_name: str) -> str | None:
    """Returns the subdirectory that the file ``file_name`` in ``directory`` names, or None.

    An example of ``file_name`` is ``latest``.
    """
    try:
        with open_regular(os.path.join(directory, file_name)) as file:
            name = file.read(4096).decode().strip()
    except (OSError, ValueError):
        return None
    return os.path.join(directory, name) if os.path.basename(name) == name and name not in ("", ".", "..") else None
