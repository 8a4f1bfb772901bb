"""Reads the configuration that a caller gives as a path, text or dict."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

from torch import nn

from . import _C
from .messages import a_type

_PLAIN = (str, int, float, bool, type(None))


def parse_config(
    settings: str | dict | os.PathLike,
    *,
    world_size: int,
    model: nn.Module | None = None,
    sequence_parallel_size: int | None = None,
) -> _C.ParsedConfig:
    """Parses a configuration, which is a dict, JSON text or a path. Text may be in base64, as DeepSpeed allows."""
    context = {
        "world_size": world_size,
        "hidden_size": _hidden_size(model),
        "sequence_parallel_size": sequence_parallel_size,
    }
    if isinstance(settings, dict):
        settings = _as_json(settings)
    text = os.fspath(settings)
    if isinstance(text, str) and not os.path.exists(text):
        text = _from_base64(text)
        if "{" in text:
            return _C.ParsedConfig.parse(text, **context)
    return _C.ParsedConfig.load(os.fsencode(text), **context)


def _as_json(settings: dict) -> str:
    try:
        text = json.dumps(settings, ensure_ascii=False)
        text.encode()  # raises for surrogates, which Python uses for bytes of paths that are not UTF-8
        return text
    except (TypeError, ValueError, RecursionError):
        place, value = _no_plain_value(settings, "config", [])
        raise ValueError(
            f"{place} is {value!r:.200}, {a_type(value)}: a configuration holds what JSON can, which is "
            "numbers, text in UTF-8, true, false, null, lists and dicts"
        ) from None


def _no_plain_value(value: Any, place: str, around: list[int]) -> tuple[str, Any]:
    """Returns the path and the value of the first key or value in ``value`` that JSON cannot hold.

    A container that contains itself, or that more than 500 containers surround, counts as such a value. ``place`` is
    the path of ``value``, and ``around`` has the ids of the containers around it. If JSON can hold everything in
    ``value``, returns ("", None), except for the outermost container. For that one, returns its path and the container
    itself, because ``json.dumps`` has refused it.
    """
    if isinstance(value, _PLAIN):
        return ("", None) if _is_utf8(value) else (place, value)
    if not isinstance(value, (dict, list, tuple)) or id(value) in around or len(around) > 500:
        return place, value
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if not isinstance(key, _PLAIN) or not _is_utf8(key):
            return f"a key of {place}", key
        found = _no_plain_value(item, f"{place}[{key!r}]", [*around, id(value)])
        if found[0]:
            return found
    return ("", None) if around else (place, value)


def _is_utf8(value: Any) -> bool:
    return not isinstance(value, str) or value.isascii() or value.encode(errors="ignore").decode() == value


def _from_base64(text: str) -> str:
    try:
        decoded = base64.urlsafe_b64decode(text).decode()
    except ValueError:  # not base64, or its content is not text
        return text
    return decoded if decoded.lstrip().startswith("{") else text


def _hidden_size(model: nn.Module | None) -> int | None:
    config = getattr(model, "config", None)
    size = getattr(config, "hidden_size", None) or getattr(config, "n_embd", None)
    return size if isinstance(size, int) else None
