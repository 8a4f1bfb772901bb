"""Has DeepSpeed's logger, and the functions that log on some ranks."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterable

import torch.distributed as dist

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class _Stderr(logging.StreamHandler):
    """Writes log messages to the present ``sys.stderr``, even if it was replaced."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(
            logging.Formatter("[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s")
        )

    @property
    def stream(self):
        return sys.stderr


def _make_logger() -> logging.Logger:
    made = logging.getLogger("DeepSpeed")
    made.setLevel(logging.WARNING)
    made.propagate = False
    if not any(isinstance(handler, _Stderr) for handler in made.handlers):
        made.addHandler(_Stderr())
    return made


logger = _make_logger()


@functools.cache
def _warn_once(*args: object, **options: object) -> None:
    logger.warning(*args, **options)


def _message(message: str, ranks: Iterable[int] | None) -> str | None:
    """Returns the message with the rank before it, or None on ranks that do not log it.

    Without ``ranks`` no rank logs it. If torch.distributed is not started, the message is always logged, for rank -1.
    """
    if not dist.is_initialized():
        return f"[Rank -1] {message}"
    rank = dist.get_rank()
    chosen = list(ranks or [])
    return f"[Rank {rank}] {message}" if chosen and (chosen[0] == -1 or rank in chosen) else None


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs on these ranks. [-1] means all ranks."""
    if (text := _message(message, ranks)) is not None:
        logger.log(level, text)


@functools.cache
def _log_dist_once(message: str, ranks: tuple[int, ...] | None, level: int) -> None:
    log_dist(message, ranks, level)


def log_dist_once(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Does the same as ``log_dist``, but logs each message only once in this process."""
    _log_dist_once(message, tuple(ranks) if ranks is not None else None, level)


def print_dist(message: str, ranks: Iterable[int] | None = None) -> None:
    """Prints on these ranks. [-1] means all ranks."""
    if (text := _message(message, ranks)) is not None:
        print(text)


def set_log_level_from_string(log_level_str: str, custom_logger: logging.Logger | None = None) -> None:
    if log_level_str.lower() not in _LEVELS:
        raise ValueError(f"log level is '{log_level_str}', expected one of {', '.join(_LEVELS)}")
    (custom_logger or logger).setLevel(_LEVELS[log_level_str.lower()])


logger.warning_once = _warn_once
logger.log_dist_once = log_dist_once
