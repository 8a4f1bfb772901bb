"""Reads what ``torch.save`` wrote, and pickles, without running what they ask for.

A pickle names callables and has them called. Here a name stands for what this file says it stands for: tensors,
storages, dtypes and plain containers. Every other name is a ``Placeholder`` class, which records its arguments and
state and does nothing. Tensors are views of the mapped file: reading one costs memory when its elements are read.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .files import open_regular

_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip
_DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES.values()}


class Placeholder:
    """An object of a class that is not loaded: its name, arguments and state."""

    class_name = ""

    def __new__(cls, *arguments: Any, **named: Any) -> Placeholder:
        self = object.__new__(cls)
        object.__setattr__(self, "_recorded", (arguments, named))
        object.__setattr__(self, "_fields", {})
        object.__setattr__(self, "_items", [])
        return self

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self._recorded[0]

    @property
    def fields(self) -> dict[str, Any]:
        """Its attributes, as far as its state is a dict."""
        return self._fields

    @property
    def items(self) -> list[Any]:
        """What the pickle appended to it."""
        return self._items

    def get(self, name: str, default: Any = None) -> Any:
        return self._fields.get(name, default)

    def append(self, item: Any) -> None:
        self._items.append(item)

    def extend(self, items: Iterable[Any]) -> None:
        self._items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items.append((key, value))

    def __setattr__(self, name: str, value: Any) -> None:
        self._fields[name] = value

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self._fields.update({key: value for key, value in part.items() if isinstance(key, str)})

    def __repr__(self) -> str:
        return f"<{self.class_name}>"


class _Dict(dict):
    """An OrderedDict of a pickle; attributes that it may carry are dropped."""

    def __setstate__(self, state: Any) -> None:
        pass


class _Fixed:
    """What a name of a pickle stands for. The pickle cannot change it."""

    __slots__ = ("value", "function")

    def __init__(self, value: Any = None, function: Any = None) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "function", function)

    def __call__(self, *arguments: Any) -> Any:
        if self.function is None:
            raise ValueError("a pickle calls what is no function")
        return self.function(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError("a pickle sets attributes of a name")

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a pickle sets the state of a name")


class _Storage:
    """The elements of a tensor, still in the file."""

    __slots__ = ("archive", "key", "dtype", "numel")

    def __init__(self, archive: Archive, key: str, dtype: torch.dtype, numel: int) -> None:
        self.archive, self.key, self.dtype, self.numel = archive, key, dtype, numel


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> torch.Tensor:
    numbers = [offset, *size, *stride]
    if not isinstance(storage, _Storage) or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError("a tensor without a storage, sizes and strides")
    flat = storage.archive.elements(storage)
    last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if 0 not in size and last >= flat.numel():
        raise ValueError(f"a tensor of the shape {list(size)} in a storage of {flat.numel()} elements")
    return flat.as_strided(tuple(size), tuple(stride), offset) if 0 not in size else flat.new_empty(tuple(size))


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def _rebuild_subclass(function: Any, _: Any, arguments: Any, *__: Any) -> Any:
    if not isinstance(function, _Fixed) or function.function not in (_rebuild_tensor, _rebuild_parameter):
        raise ValueError("a tensor that is made by an unknown function")
    return function(*arguments)


def _to_dict(items: Any = ()) -> _Dict:
    return _Dict(items) if isinstance(items, (list, tuple, Mapping)) else _Dict()


def _known_names() -> dict[str, Any]:
    """Made anew for each pickle."""
    names: dict[str, Any] = {
        "torch._utils._rebuild_tensor_v2": _Fixed(function=_rebuild_tensor),
        "torch._utils._rebuild_parameter": _Fixed(function=_rebuild_parameter),
        "torch._utils._rebuild_parameter_with_state": _Fixed(function=_rebuild_parameter),
        "torch._tensor._rebuild_from_type_v2": _Fixed(function=_rebuild_subclass),
        "collections.OrderedDict": _Fixed(function=_to_dict),
        "torch.Size": _Fixed(function=lambda sizes=(): tuple(sizes) if isinstance(sizes, (list, tuple)) else ()),
    }
    for name, dtype in _DTYPES.items():
        names[f"torch.{name}Storage"] = names[f"torch.storage.{name}Storage"] = _Fixed(dtype)
    names |= {f"torch.{name}": dtype for name, dtype in _DTYPE_NAMES.items()}
    return names


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BufferedIOBase, archive: Archive | None) -> None:
        super().__init__(file, encoding="utf-8")
        self._archive = archive
        self._names = _known_names()

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self._names:
            self._names[full] = type("Placeholder", (Placeholder,), {"class_name": full})
        return self._names[full]

    def persistent_load(self, pid: Any) -> _Storage:
        well_formed = isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and self._archive is not None
        if not well_formed or not isinstance(pid[1], _Fixed) or not isinstance(pid[1].value, torch.dtype):
            raise ValueError(f"a storage of a kind that is not known: {str(pid)[:100]}")
        if not isinstance(pid[2], str) or not isinstance(pid[4], int) or pid[4] < 0:
            raise ValueError("a storage without a name and a size")
        return _Storage(self._archive, pid[2], pid[1].value, pid[4])


def _check_numbers(data: bytes) -> None:
    """Raises ``ValueError`` unless lengths and memo numbers fit the pickle: the unpickler gets memory by them."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= argument < len(data):
            raise ValueError(f"it remembers a value under the number {argument}, and has {len(data)} bytes")


def load_pickle(data: bytes, where: str, archive: Archive | None = None) -> Any:
    """The value of a pickle. Raises ``ValueError`` naming ``where`` when it is damaged or not of a known form."""
    try:
        _check_numbers(data)
        return _Unpickler(io.BytesIO(data), archive).load()
    except RecursionError:
        raise ValueError(f"{where}: nested too deeply") from None
    except Exception as error:
        raise ValueError(f"{where} cannot be read: {type(error).__name__}: {error}") from None


class _Window(io.RawIOBase):
    """A stretch of bytes as a file."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, len(self._view))[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._view[self._at : self._at + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class Archive:
    """A file of ``torch.save`` (the zip format of torch >= 1.6), or a stretch of one that holds such a file."""

    def __init__(self, path: str, begin: int = 0, length: int | None = None) -> None:
        self.where = path
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = size - begin if length is None else length
            if size == 0:
                raise ValueError(f"{path} is empty: it is no file of torch.save")
            if begin < 0 or length <= 0 or begin + length > size:
                raise ValueError(f"{path} has {size} bytes, not those from {begin} to {begin + length}")
            # Copy on write: torch wants memory it may write to, and the file stays as it is.
            self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))[begin : begin + length]
        try:
            with zipfile.ZipFile(_Window(self._bytes)) as archive:
                self._records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        except (zipfile.BadZipFile, struct.error, OSError) as error:
            raise ValueError(f"{path} is no zip file of torch.save ({error}): save it with torch >= 1.6") from None
        if "data.pkl" not in self._records:
            raise ValueError(f"{path} has no data.pkl: it is no file of torch.save")
        if "byteorder" in self._records and bytes(self._record("byteorder")) != b"little":
            raise ValueError(f"{path} was written by a big-endian machine")

    def load(self) -> Any:
        return load_pickle(bytes(self._record("data.pkl")), self.where, self)

    def elements(self, storage: _Storage) -> torch.Tensor:
        """All elements of a storage, 1-D."""
        data = self._record(f"data/{storage.key}")
        if len(data) < storage.numel * storage.dtype.itemsize:
            raise ValueError(f"the storage {storage.key} has {len(data)} bytes, not {storage.numel} {storage.dtype}")
        if storage.numel == 0:
            return torch.empty(0, dtype=storage.dtype)
        flat = torch.frombuffer(data, dtype=torch.uint8, count=storage.numel * storage.dtype.itemsize)
        aligned = flat.data_ptr() % storage.dtype.itemsize == 0
        return (flat if aligned else flat.clone()).view(storage.dtype)

    def _record(self, name: str) -> memoryview:
        info = self._records.get(name)
        if info is None or info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{self.where} has no record {name}")
        header = bytes(self._bytes[info.header_offset : info.header_offset + 30])
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise ValueError(f"{self.where}: the record {name} is damaged")
        begin = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
        if begin + info.file_size > len(self._bytes):
            raise ValueError(f"{self.where} ends within the record {name}")
        return self._bytes[begin : begin + info.file_size]


def load_file(path: str) -> Any:
    return Archive(path).load()
