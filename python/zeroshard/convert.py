"""Implements ``zeroshard checkpoint convert``: turns a checkpoint of DeepSpeed or PyTorch DCP into one of zeroshard."""

from __future__ import annotations

import argparse
import errno
import json
import math
import mmap
import os
import sys
import tempfile
from typing import Any

import torch

from . import _C
from .encoding import DTYPES, encode
from .importing import dcp, deepspeed, universal
from .importing.contents import Contents, Entry, make_names_plain, whole
from .importing.pickles import Placeholder

_SAFETENSORS = {dtype: name for name, dtype in DTYPES.items()}


def convert(
    source: str | os.PathLike, out: str | os.PathLike, tag: str | None = None, buffers: list[str] | None = None
) -> tuple[str, list[str]]:
    """Converts the checkpoint ``source`` of DeepSpeed or DCP to ``out``.

    Returns the path of the new checkpoint, and notes on parts that were lost. ``buffers`` are patterns for the names of
    buffers, because DCP does not distinguish buffers from frozen parameters. The disk of ``out`` must have room for the
    new checkpoint twice. Raises ``ValueError`` if the source is no checkpoint of either kind, is damaged or is
    incomplete, and if ``out`` already has a checkpoint of that tag.
    """
    source, out = os.fspath(source), os.fspath(out)
    try:
        return _convert(source, out, tag, buffers or [])
    except (AttributeError, ArithmeticError, LookupError, RuntimeError, TypeError) as error:
        if isinstance(error, _C.Error):
            raise
        kind = type(error).__name__  # for example, a value in the source has a wrong type
        raise ValueError(f"{source} is damaged or of a form that is not known: {kind}: {error}") from error


def _convert(source: str, out: str, tag: str | None, buffers: list[str]) -> tuple[str, list[str]]:
    if (directory := deepspeed.find(source)) is not None:
        contents = deepspeed.read(directory)
    elif (directory := universal.find(source)) is not None:
        contents = universal.read(directory)
    elif dcp.is_checkpoint(source):
        contents = dcp.read(source, buffers)
    else:
        raise ValueError(
            f"{source} is no checkpoint that can be imported: expected *_optim_states.pt (DeepSpeed ZeRO 1 to 3), "
            "'latest' that names a directory with them, zero/ beside *_model_states.pt (DeepSpeed's universal format), "
            "or .metadata (PyTorch DCP)"
        )
    tag = f"global_step{contents.step}" if tag is None else tag
    if os.path.lexists(os.path.join(out, tag, "manifest.json")):
        raise ValueError(
            f"{os.path.join(out, tag)} is a checkpoint already, and is not replaced: choose another output directory, "
            "or another tag"
        )
    notes = contents.notes
    state, more = _state(contents)
    entries = contents.entries + more
    _check(entries)
    make_names_plain(contents.entries)
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryFile(dir=out) as scratch:
        tensors = _assemble(entries, scratch, out)
        _C.write_checkpoint(
            root=out,
            tag=tag,
            step=contents.step,
            state=json.dumps(state, allow_nan=False),
            rank_state=json.dumps({"optimizer": {}}),
            versions={"torch": torch.__version__, "imported from": contents.source},
            tensors=tensors,
        )
    return os.path.join(out, tag), notes


def _check(entries: list[Entry]) -> None:
    seen = set()
    for entry in entries:
        if (entry.name, entry.kind) in seen or not isinstance(entry.name, str):
            raise ValueError(f"the source has two '{entry.name}' ({entry.kind})")
        seen.add((entry.name, entry.kind))
        if entry.dtype not in _SAFETENSORS or not all(isinstance(size, int) and size >= 0 for size in entry.shape):
            raise ValueError(f"'{entry.name}' ({entry.kind}) is {entry.dtype} {list(entry.shape)}: it cannot be kept")


def _reserve(scratch: Any, size: int, out: str) -> None:
    """Reserves room for the whole file, so that a full disk raises an error here, and not a signal at a later write."""
    try:
        os.posix_fallocate(scratch.fileno(), 0, size)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        room = os.statvfs(scratch.fileno())
        raise _C.IoError(
            f"cannot reserve space in {out}: {error.strerror}; the import needs {size} bytes twice, "
            f"{room.f_bavail * room.f_frsize} are free"
            + (". Free some space there, or choose another directory" if full else "")
        ) from error


def _assemble(entries: list[Entry], scratch: Any, out: str) -> list[tuple[_C.StoredTensor, torch.Tensor]]:
    """Copies whole tensors to a mapped file, so that they need not fit into memory together.

    Returns each tensor with its description.
    """
    begins, end = [], 0
    for entry in entries:
        begins.append(end)
        end += -(-entry.bytes // 64) * 64
    if end:
        _reserve(scratch, end, out)
    mapped = mmap.mmap(scratch.fileno(), end) if end else None
    tensors = []
    for entry, begin in zip(entries, begins, strict=True):
        numel = math.prod(entry.shape)
        flat = torch.empty(0, dtype=entry.dtype)
        if numel:
            flat = torch.frombuffer(mapped, dtype=entry.dtype, count=numel, offset=begin)
        tensor = flat.view(entry.shape)
        if numel:
            entry.fill(tensor)
        description = _C.StoredTensor(
            name=entry.name,
            kind=entry.kind,
            dtype=_SAFETENSORS[entry.dtype],
            shape=list(entry.shape),
            aliases=entry.aliases,
            trainable=entry.trainable,
            updates=entry.updates,
        )
        tensors.append((description, tensor))
    return tensors


def _state(contents: Contents) -> tuple[dict[str, Any], list[Entry]]:
    """Returns the state of the run in the form that ``engine.load_checkpoint`` reads, and its tensors.

    Leaves out what a checkpoint cannot hold, and says so in ``contents.notes``.
    """
    tensors: dict[str, torch.Tensor] = {}

    def encoded(value: Any, what: str, where: str) -> Any:
        try:
            return encode(_plain(value), where, tensors)
        except (ValueError, RecursionError) as error:
            contents.notes.append(f"{what}: {error}")
            return None

    front = {key: encoded(value, f"'{key}'", f"client.{key}") for key, value in contents.state.items()}
    if front.get("param_groups") is None:
        front.pop("param_groups", None)
    client = {}
    for key, value in contents.client.items():
        before = len(contents.notes)
        result = encoded(value, f"client state '{key}'", f"client.client.{key}")
        if len(contents.notes) == before:
            client[str(key)] = result
    front |= {"client": client, "data": None}
    frozen = any(entry.kind == "weight" and not entry.trainable for entry in contents.entries)
    core = {**_loss_scale(contents), "skipped_in_a_row": 0, "excludes_frozen": not frozen}
    return {"core": core, "front": front}, [whole(name, "client", tensor) for name, tensor in tensors.items()]


def _plain(value: Any) -> Any:
    """Returns a copy of ``value`` in which every dict is an ordinary one.

    Raises ``ValueError`` if it contains an object of a class that the restricted reader does not load.
    """
    if isinstance(value, (Placeholder, type)):
        raise ValueError(f"it holds {value!r}, which is not loaded")
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return value


def _loss_scale(contents: Contents) -> dict[str, Any]:
    saved = contents.loss_scale
    numbers = [saved.get(key) for key in ("iteration", "last_overflow", "hysteresis_left")]
    usable = all(isinstance(number, int) for number in numbers) and 0 < saved["scale"] <= 2.0**127
    usable = usable and -1 <= numbers[1] <= numbers[0] and numbers[2] >= 1
    if saved.get("dynamic") and not usable:
        contents.notes.append(f"the loss scaler's state: {saved}")
    known = usable and bool(saved.get("dynamic"))
    # If the source has no usable dynamic loss scale, an fp16 run that continues from the new checkpoint starts with the
    # scale 65536.
    return {
        "loss_scale": float(saved["scale"]) if known else 65536.0,
        "loss_scale_iteration": numbers[0] if known else 0,
        "loss_scale_last_overflow": numbers[1] if known else -1,
        "loss_scale_hysteresis_left": numbers[2] if known else 1,
    }


def main() -> int:
    parser = argparse.ArgumentParser("zeroshard checkpoint convert", description=__doc__)
    parser.add_argument(
        "source", help="a directory of a DeepSpeed checkpoint (ZeRO 1 to 3, universal) or of PyTorch DCP"
    )
    parser.add_argument("out", help="the directory that gets OUT/global_step<N>")
    parser.add_argument("--tag", help="the name below OUT")
    parser.add_argument("--buffer", action="append", default=[], help="pattern of names that are buffers (DCP)")
    arguments = parser.parse_args()
    try:
        path, notes = convert(arguments.source, arguments.out, arguments.tag, arguments.buffer)
    except (ValueError, OSError, _C.IoError) as error:
        print(f"zeroshard: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    for note in notes:
        print(f"zeroshard: not imported: {note}", file=sys.stderr)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
