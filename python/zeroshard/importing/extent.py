"""Computes the size of a pickle's values as if every reference to a value were written out.

A pickle of a hundred bytes can have ten lists, each of which contains the previous list ten times. Code that walks
through these lists visits ten thousand million values. So this module first counts the values, and looks at each object
only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .unpickling import Placeholder

_VALUES_PER_BYTE, _VALUES = 16, 100_000  # limits of values: per byte of the pickle, plus this many
_CHARACTERS_PER_BYTE, _CHARACTERS = 64, 1 << 20  # the same for characters of texts and numbers
_BYTES_PER_BYTE, _BYTES = 64, 64 << 20  # limit for bytes of tensors: per byte of the file, but at least this many


class _Visit:
    """A container whose parts are being counted."""

    __slots__ = ("value", "above", "label", "rest", "extent")

    def __init__(self, value: Any, above: _Visit | None = None, label: Any = None) -> None:
        self.value, self.above, self.label = value, above, label
        self.rest, self.extent = _parts(value), [1, 0, 0]  # extent: the numbers of values, characters, bytes of tensors


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the parts of a value, each with a label."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, key
            yield key, item
    elif isinstance(value, Placeholder):
        yield "arguments", value.arguments
        yield "state", value.fields
        yield "items", value.items
    else:
        yield from enumerate(value)


def _place(visit: _Visit, label: Any) -> str:
    labels = [label]
    while visit.above is not None:
        labels.append(visit.label)
        visit = visit.above
    return ".".join(str(label)[:200] for label in labels[-2::-1])[:1000]


def _characters(value: Any) -> int:
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    return value.bit_length() // 4 if isinstance(value, int) else 0


def check_extent(root: Any, pickle_bytes: int, file_bytes: int) -> None:
    """Raises ``ValueError`` if the values of a pickle expand to much more than its file.

    An object of a class that the reader does not load counts as one value, because no code walks through it.
    """
    most = (
        _VALUES_PER_BYTE * pickle_bytes + _VALUES,
        _CHARACTERS_PER_BYTE * pickle_bytes + _CHARACTERS,
        max(_BYTES_PER_BYTE * file_bytes, _BYTES),
    )
    known: dict[int, list[int]] = {}  # extents of values that are already counted, by id()
    begun = set()
    visits = [_Visit([root])]
    while True:
        visit = visits[-1]
        for label, part in visit.rest:
            if id(part) in known:
                _add(visit, known[id(part)], most)
            elif isinstance(part, torch.Tensor):
                known[id(part)] = [1, 0, _tensor_bytes(part, visit, label, max(file_bytes, _BYTES))]
                _add(visit, known[id(part)], most)
            elif not isinstance(part, (dict, list, tuple, set, frozenset, Placeholder)):
                _add(visit, [1, _characters(part), 0], most)
            elif id(part) not in begun:  # a part that is begun but not known contains itself
                begun.add(id(part))
                visits.append(_Visit(part, visit, label))
                break
        else:
            visits.pop()
            if not visits:
                return _check(visit.extent, most, pickle_bytes)
            known[id(visit.value)] = [1, 0, 0] if isinstance(visit.value, Placeholder) else visit.extent
            _add(visits[-1], known[id(visit.value)], most)


def _add(visit: _Visit, extent: list[int], most: tuple[int, int, int]) -> None:
    """Adds an extent, but stops just above the limits, because a count could otherwise get very many digits."""
    visit.extent = [min(a + b, limit + 1) for a, b, limit in zip(visit.extent, extent, most, strict=True)]


def _check(extent: list[int], most: tuple[int, int, int], pickle_bytes: int) -> None:
    what = ("values", "characters", "bytes of tensors")
    for found, limit, name in zip(extent, most, what, strict=True):
        if found > limit:
            raise ValueError(
                f"its values refer to one another so often that, written out, they have more than {limit} {name}; the "
                f"pickle has {pickle_bytes} bytes"
            )


def _tensor_bytes(tensor: torch.Tensor, visit: _Visit, label: Any, most: int) -> int:
    """Returns the bytes of a tensor. Raises ``ValueError`` for more than ``most``, or if elements are not in the file.

    ``expand`` makes tensors that have more elements than their storage, by a stride of 0. ``torch.save`` writes only
    the storage.
    """

    def what() -> str:
        return f"the tensor {_place(visit, label)!r} of the shape {list(tensor.shape)}"

    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    distinct = 1
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        distinct *= size if step else 1
    if tensor.numel() and distinct > stored:
        raise ValueError(f"{what()} and the steps {list(tensor.stride())} has a storage of {stored} elements")
    count = tensor.numel() * tensor.element_size()
    if count > most:
        raise ValueError(f"{what()} has {count} bytes, repeated from {stored} elements: at most {most} are read")
    return count
