"""Implements DeepSpeed's ``zero_to_fp32``: reads the fp32 weights of a checkpoint, without an engine or ranks.

The functions read checkpoints of zeroshard and of DeepSpeed. A restricted reader opens DeepSpeed's pickles, so no code
in them runs. The functions write no pickles.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..convert import convert
from ..encoding import DTYPES
from ..importing import deepspeed, universal
from ..importing.contents import make_names_plain
from ..messages import log
from ..names import plain_names
from .checkpoint import find_deepspeed

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_UNLIMITED = 10**18
_FLOATS = ("F64", "F32", "F16", "BF16")  # tensors of other dtypes keep their dtype


@dataclass
class LazyTensor:
    """A tensor whose values are still in its file. ``contiguous()`` reads them."""

    shape: torch.Size
    dtype: torch.dtype
    _read: Callable[[], torch.Tensor]

    def contiguous(self) -> torch.Tensor:
        return self._read()

    def numel(self) -> int:
        return self.shape.numel()


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | os.PathLike,
    tag: str | int | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> dict[str, Any]:
    """Returns weights and buffers of a checkpoint by name. Floating-point values are fp32. Tied names share a tensor.

    Without ``tag`` the function reads the newest whole checkpoint of zeroshard, or the checkpoint of DeepSpeed that
    ``latest`` names. With ``lazy_mode`` each value is only read when its ``contiguous()`` is called. Raises
    ``ValueError`` or ``IoError`` if there is no checkpoint, or if the checkpoint is damaged.
    """
    lazy = _lazy_state(os.fspath(checkpoint_dir), tag, exclude_frozen_parameters)
    if lazy_mode:
        return lazy
    read: dict[int, torch.Tensor] = {}  # tied names share one LazyTensor
    return {name: read.setdefault(id(value), _Once(value)).tensor() for name, value in lazy.items()}


class _Once:
    def __init__(self, lazy: LazyTensor) -> None:
        self._lazy, self._tensor = lazy, None

    def tensor(self) -> torch.Tensor:
        if self._tensor is None:
            self._tensor = self._lazy.contiguous()
        return self._tensor


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | os.PathLike,
    output_dir: str | os.PathLike,
    max_shard_size: str | int | None = "5GB",
    safe_serialization: bool = False,
    tag: str | int | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes the fp32 weights as ``model.safetensors``, or as several files and an index, into ``output_dir``.

    ``safe_serialization`` has no effect, because zeroshard never writes a pickle. Needs memory for one piece of a
    tensor. For a checkpoint of DeepSpeed it also needs room for a second copy on the disk.
    """
    source, out = os.fspath(checkpoint_dir), os.fspath(output_dir)
    limit = _bytes_of(max_shard_size)
    foreign = _foreign(source, tag)
    if not safe_serialization:
        log("zero_to_fp32 writes model.safetensors, not pytorch_model.bin: zeroshard writes no pickle")
    if foreign is None:
        files = _export(_ours(source, tag), out, limit, exclude_frozen_parameters)
    else:
        os.makedirs(out, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".zeroshard-import-", dir=out) as scratch:
            path, _ = convert(foreign, scratch, tag="imported")
            files = _export(path, out, limit, exclude_frozen_parameters)
    for file in files:
        print(file)


def load_state_dict_from_zero_checkpoint(
    model: torch.nn.Module, checkpoint_dir: str | os.PathLike, tag: str | int | None = None
) -> torch.nn.Module:
    """Moves ``model`` to the CPU and gives it the weights of a checkpoint, one tensor after another.

    Skips tensors that only the checkpoint or only the model has. Raises ``ValueError`` if they have no tensor in
    common, or if a shape differs.
    """
    lazy = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, lazy_mode=True)
    model = model.cpu()
    values = model.state_dict(keep_vars=True)
    plain = plain_names((name, id(value)) for name, value in values.items())
    own = {plain[name]: name for name in values}
    wrong = [
        f"'{name}' has the shape {list(values[own[name]].shape)}, in the checkpoint {list(value.shape)}"
        for name, value in lazy.items()
        if name in own and values[own[name]].shape != value.shape
    ]
    if wrong:
        raise ValueError("load_state_dict_from_zero_checkpoint: " + "; ".join(wrong[:5]))
    if not any(name in own for name in lazy):
        raise ValueError(
            f"load_state_dict_from_zero_checkpoint: no tensor of the checkpoint in {os.fspath(checkpoint_dir)} is the "
            f"model's: it has {_some(lazy)}, and the model {_some(own)}"
        )
    for name, value in lazy.items():
        if name in own:
            model.load_state_dict({own[name]: value.contiguous()}, strict=False)
    return model


def get_optim_files(checkpoint_dir: str) -> list[str]:
    """Returns a checkpoint's files with optimizer states. In a checkpoint of zeroshard they also have the weights."""
    return _files(checkpoint_dir, "*_optim_states.pt")


def get_model_state_files(checkpoint_dir: str) -> list[str]:
    return _files(checkpoint_dir, "*_model_states.pt")


def get_model_state_file(checkpoint_dir: str, zero_stage: int) -> str:
    """Returns the first file with the model's weights in one checkpoint."""
    name = "mp_rank_00_model_states.pt" if zero_stage <= 2 else "zero_pp_rank_0_mp_rank_00_model_states.pt"
    own = os.path.join(checkpoint_dir, "manifest.json")
    return _files(checkpoint_dir, name)[0] if not os.path.exists(own) else get_model_state_files(checkpoint_dir)[0]


def _files(directory: str, pattern: str) -> list[str]:
    if not os.path.isdir(directory):
        raise FileNotFoundError(f"Directory '{directory}' doesn't exist")
    if os.path.exists(os.path.join(directory, "manifest.json")):
        pattern = "rank-*.safetensors"
    files = glob.glob(os.path.join(glob.escape(directory), pattern))
    if not files:
        raise FileNotFoundError(f"can't find {pattern} files in directory '{directory}'")
    return sorted(files, key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)])


def _some(names: Any) -> str:
    shown = ", ".join(f"'{name}'" for name in list(names)[:3])
    return f"{shown}, ..." if len(names) > 3 else shown or "nothing"


def _foreign(directory: str, tag: str | int | None) -> str | None:
    if not os.path.isdir(directory):
        raise FileNotFoundError(f"Directory '{directory}' doesn't exist")
    return find_deepspeed(directory, tag)


def _ours(directory: str, tag: str | int | None) -> str:
    path = directory if tag is None else os.path.join(directory, str(tag))
    if not os.path.isdir(path):
        raise FileNotFoundError(f"Directory '{path}' doesn't exist")
    return path


def _lazy_state(directory: str, tag: str | int | None, exclude_frozen: bool) -> dict[str, LazyTensor]:
    foreign = _foreign(directory, tag)
    if foreign is not None:
        return _lazy_state_of_deepspeed(foreign, exclude_frozen)
    stored = _C.StoredCheckpoint(os.fsencode(_ours(directory, tag)))
    state: dict[str, LazyTensor] = {}
    for tensor in stored.tensors:
        if tensor.kind not in ("weight", "buffer") or (exclude_frozen and _is_frozen(tensor)):
            continue
        dtype = torch.float32 if tensor.dtype in _FLOATS else DTYPES[tensor.dtype]

        def read(tensor: Any = tensor, dtype: torch.dtype = dtype) -> torch.Tensor:
            out = torch.empty(tensor.shape, dtype=dtype)
            name = "F32" if dtype == torch.float32 else tensor.dtype
            stored.read(tensor.name, tensor.kind, dtype=name, out=out)
            return out

        lazy = LazyTensor(torch.Size(tensor.shape), dtype, read)
        state |= dict.fromkeys([tensor.name, *tensor.aliases], lazy)
    return state


def _is_frozen(tensor: Any) -> bool:
    return tensor.kind == "weight" and not tensor.trainable


def _lazy_state_of_deepspeed(directory: str, exclude_frozen: bool) -> dict[str, LazyTensor]:
    contents = (deepspeed if deepspeed.find(directory) == directory else universal).read(directory)
    make_names_plain(contents.entries)
    state: dict[str, LazyTensor] = {}
    for entry in contents.entries:
        if entry.kind not in ("weight", "buffer") or (exclude_frozen and _is_frozen(entry)):
            continue
        dtype = torch.float32 if entry.dtype.is_floating_point else entry.dtype

        def read(entry: Any = entry, dtype: torch.dtype = dtype) -> torch.Tensor:
            out = torch.empty(entry.shape, dtype=entry.dtype)
            entry.fill(out)
            return out.to(dtype)

        lazy = LazyTensor(torch.Size(entry.shape), dtype, read)
        state |= dict.fromkeys([entry.name, *entry.aliases], lazy)
    return state


def _export(path: str, out: str, max_file_bytes: int, exclude_frozen: bool) -> list[str]:
    left_out = set()
    if exclude_frozen:
        left_out = {tensor.name for tensor in _C.StoredCheckpoint(os.fsencode(path)).tensors if _is_frozen(tensor)}
    return _C.export_weights(
        os.fsencode(path), os.fsencode(out), dtype="F32", max_file_bytes=max_file_bytes, leave_out=left_out
    )


def _bytes_of(size: str | int | None) -> int:
    if size is None:
        return _UNLIMITED
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", str(size).upper())
    unit = match[2] if match is not None and match[2] in _UNITS else None
    number = float(match[1]) * _UNITS[unit] if unit is not None else 0
    if not 1 <= number <= _UNLIMITED:
        raise ValueError(f"max_shard_size is {size!r}, expected a size such as '5GB', '200MB', '1GiB' or bytes")
    return int(number)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command ``zero_to_fp32.py`` that is next to a checkpoint."""
    parser = argparse.ArgumentParser("zero_to_fp32.py", description="Writes the fp32 weights of a checkpoint.")
    parser.add_argument("checkpoint_dir", help="where the run saved its checkpoints, e.g. path/checkpoint-12")
    parser.add_argument("output_dir", help="the directory that gets model.safetensors")
    parser.add_argument("--max_shard_size", default="5GB", help="the largest size of a file (default: 5GB)")
    parser.add_argument("--safe_serialization", action="store_true", help="safetensors, which it always writes")
    parser.add_argument("-t", "--tag", help="the checkpoint, e.g. global_step1 (default: the newest whole one)")
    parser.add_argument("-e", "--exclude_frozen_parameters", action="store_true", help="leave frozen parameters out")
    parser.add_argument("-d", "--debug", action="store_true", help="print every tensor's name and shape")
    given = parser.parse_args(arguments)
    try:
        if given.debug:
            for name, tensor in _lazy_state(given.checkpoint_dir, given.tag, given.exclude_frozen_parameters).items():
                log(json.dumps({"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype)}))
        convert_zero_checkpoint_to_fp32_state_dict(
            given.checkpoint_dir,
            given.output_dir,
            given.max_shard_size,
            given.safe_serialization,
            given.tag,
            given.exclude_frozen_parameters,
        )
    except (_C.Error, ValueError, OSError) as error:
        print(f"zero_to_fp32.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
