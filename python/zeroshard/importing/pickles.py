"""Reads files of ``torch.save`` and pickles without running the code that they name.

The reader knows only the names of tensors, storages, dtypes and plain containers. Tensors are views of the mapped file,
so a tensor takes memory only when its elements are read. Only a tensor that is not aligned in the file is a copy.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import torch

from .extent import check_extent
from .files import open_regular
from .unpickling import Dict, Fixed, Placeholder, Unpickler

__all__ = ["Archive", "Placeholder", "load_file", "load_pickle"]

_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip
_DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES.values()}

_MOST_DIMENSIONS = 64  # torch's limit


class _Storage:
    """The elements of a tensor, which are still in the file."""

    __slots__ = ("archive", "key", "dtype", "numel")

    def __init__(self, archive: Archive, key: str, dtype: torch.dtype, numel: int) -> None:
        self.archive, self.key, self.dtype, self.numel = archive, key, dtype, numel


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> torch.Tensor:
    numbers = [offset, *size, *stride]
    if not isinstance(storage, _Storage) or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError("a tensor without a storage, sizes and strides")
    if len(size) > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {len(size)} dimensions")
    flat = storage.archive.elements(storage)
    last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if 0 not in size and last >= flat.numel():
        raise ValueError(f"a tensor of the shape {list(size)} in a storage of {flat.numel()} elements")
    return flat.as_strided(tuple(size), tuple(stride), offset) if 0 not in size else flat.new_empty(tuple(size))


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


def _rebuild_subclass(function: Any, _: Any, arguments: Any, *__: Any) -> Any:
    if not isinstance(function, Fixed) or function.function not in (_rebuild_tensor, _rebuild_parameter):
        raise ValueError("a tensor that is made by an unknown function")
    return function(*arguments)


def _to_dict(items: Any = ()) -> Dict:
    return Dict(items) if isinstance(items, (list, tuple, Mapping)) else Dict()


def _known_names() -> dict[str, Any]:
    """Returns the objects for the known names. Each pickle gets a new dict, because the reader adds names to it."""
    names: dict[str, Any] = {
        "torch._utils._rebuild_tensor_v2": Fixed(function=_rebuild_tensor),
        "torch._utils._rebuild_parameter": Fixed(function=_rebuild_parameter),
        "torch._utils._rebuild_parameter_with_state": Fixed(function=_rebuild_parameter),
        "torch._tensor._rebuild_from_type_v2": Fixed(function=_rebuild_subclass),
        "collections.OrderedDict": Fixed(function=_to_dict),
        "torch.Size": Fixed(function=lambda sizes=(): tuple(sizes) if isinstance(sizes, (list, tuple)) else ()),
    }
    for name, dtype in _DTYPES.items():
        names[f"torch.{name}Storage"] = names[f"torch.storage.{name}Storage"] = Fixed(dtype)
    names |= {f"torch.{name}": dtype for name, dtype in _DTYPE_NAMES.items()}
    return names


def _storage_of(pid: Any, archive: Archive | None) -> _Storage:
    well_formed = isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and archive is not None
    if not well_formed or not isinstance(pid[1], Fixed) or not isinstance(pid[1].value, torch.dtype):
        parts = pid if isinstance(pid, tuple) else (pid,)
        told = ", ".join(part[:40] if isinstance(part, str) else repr(type(part)) for part in parts[:5])
        raise ValueError(f"a storage of a kind that is not known: {told}")
    if not isinstance(pid[2], str) or not isinstance(pid[4], int) or pid[4] < 0:
        raise ValueError("a storage without a name and a size")
    return _Storage(archive, pid[2], pid[1].value, pid[4])


def load_pickle(data: bytes, where: str, archive: Archive | None = None) -> Any:
    """Returns the value of a pickle.

    Raises a ``ValueError`` that names ``where`` if the pickle is damaged or not supported.
    """
    try:
        value = Unpickler(data, _known_names(), lambda pid: _storage_of(pid, archive)).load()
        check_extent(value, len(data), archive.length if archive else 0)
        return value
    except RecursionError:
        raise ValueError(f"{where}: nested too deeply") from None
    except Exception as error:
        raise ValueError(f"{where} cannot be read: {type(error).__name__}: {error}") from None


class _Window(io.RawIOBase):
    """A range of bytes that can be read like a file."""

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
    """A file of ``torch.save`` (the zip format of torch >= 1.6), or a part of a file that contains one."""

    def __init__(self, path: str, begin: int = 0, length: int | None = None) -> None:
        self.where = path
        self._copies: dict[int, torch.Tensor] = {}  # copied records, by their position
        self._copied = 0  # number of copied bytes
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = size - begin if length is None else length
            if size == 0:
                raise ValueError(f"{path} is empty: it is no file of torch.save")
            if begin < 0 or length <= 0 or begin + length > size:
                raise ValueError(
                    f"{path} has {size} bytes, but the checkpoint keeps a value in bytes {begin} to {begin + length}: "
                    "the file is cut off or damaged"
                )
            self.length = length
            # Maps the file with copy on write, because torch needs writable memory, but the file must not change.
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
        """Returns all elements of a storage, 1-D."""
        data = self._record(f"data/{storage.key}")
        if len(data) < storage.numel * storage.dtype.itemsize:
            raise ValueError(f"the storage {storage.key} has {len(data)} bytes, not {storage.numel} {storage.dtype}")
        if storage.numel == 0:
            return torch.empty(0, dtype=storage.dtype)
        whole = torch.frombuffer(data, dtype=torch.uint8)
        if whole.data_ptr() % storage.dtype.itemsize:
            whole = self._aligned(whole)
        return whole[: storage.numel * storage.dtype.itemsize].view(storage.dtype)

    def _aligned(self, record: torch.Tensor) -> torch.Tensor:
        """Returns an aligned copy of a record. It is made once for all tensors in the record."""
        copy = self._copies.get(record.data_ptr())
        if copy is None or copy.numel() != record.numel():
            self._copied += record.numel()
            if self._copied > self.length:
                raise ValueError(f"{self.where}: its records overlap")
            copy = self._copies[record.data_ptr()] = record.clone()
        return copy

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
