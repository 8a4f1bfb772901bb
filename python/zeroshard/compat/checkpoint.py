"""Does what DeepSpeed's ``save_checkpoint`` and ``load_checkpoint`` do, and zeroshard's do not."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
from typing import Any

import torch
import torch.distributed as dist

from .. import _C, checkpoint
from ..convert import convert
from ..importing import deepspeed, universal
from ..importing.files import named_below
from ..messages import log
from ..run import Run
from ..together import together

SCRIPT = "zero_to_fp32.py"
_MODEL_FILE = "mp_rank_00_model_states.pt"
_CPU = torch.device("cpu")
_SCRIPT_TEXT = '''#!/usr/bin/env python3
"""Writes the fp32 weights of a checkpoint in this directory: ./zero_to_fp32.py . OUTPUT_DIR"""
import sys

try:
    from zeroshard.compat.zero_to_fp32 import main
except ImportError as error:
    sys.exit(f"zero_to_fp32.py: this checkpoint was saved by zeroshard, which cannot be imported ({error}): run this "
             "with the Python that has it, or use `zeroshard checkpoint export`")

if __name__ == "__main__":
    sys.exit(main())
'''


def save(
    run: Run,
    save_dir: str | os.PathLike,
    tag: str | int | None = None,
    client_state: dict[str, Any] | None = None,
    save_latest: bool = True,
    exclude_frozen_parameters: bool = False,
    rank_state: dict[str, Any] | None = None,
) -> bool:
    """Saves as zeroshard does, but returns only when the checkpoint is written.

    Trainer needs this, because it deletes the previous checkpoint after the call. If ``zeroshard.checkpoint.async`` is
    true in the user's configuration, the call returns earlier. Rank 0 writes the script ``zero_to_fp32.py`` next to the
    checkpoint, or logs a warning if that fails.
    """
    background = _is_asked_for(run.parsed, "zeroshard.checkpoint.async")
    checkpoint.save(
        run, save_dir, tag, client_state, save_latest, exclude_frozen_parameters, background, rank_state=rank_state
    )
    if run.rank == 0:
        try:
            _write_script(os.path.join(os.fsdecode(save_dir), SCRIPT))
        except OSError as error:  # only a warning, because the checkpoint is saved and needs no script
            log(f"warning: cannot write {SCRIPT}: {error}. `zeroshard checkpoint export` does the same")
    return True


def _is_asked_for(parsed: _C.ParsedConfig, path: str) -> bool:
    """Returns whether the user's configuration itself sets the key to true. A default does not count."""
    return any(
        found == path and value == "true" and origin.startswith("file") for found, value, origin in parsed.values
    )


def _write_script(path: str) -> None:
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path) as file:
        if file.read() == _SCRIPT_TEXT and os.access(path, os.X_OK):
            return
    if os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path)):
        raise FileExistsError(f"{path} is a link or a device, not a regular file")
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, mode=0o700, exist_ok=True)  # a background save might not have created it yet
    fd, temporary = tempfile.mkstemp(prefix=f".{SCRIPT}.", dir=directory)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(_SCRIPT_TEXT)
            os.fchmod(fd, 0o755)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def load(
    run: Run,
    load_dir: str | os.PathLike,
    tag: str | int | None = None,
    load_module_strict: bool = True,
    load_optimizer_states: bool = True,
    load_lr_scheduler_states: bool = True,
    load_module_only: bool = False,
    strict: bool = False,
    rank_state: dict[str, Any] | None = None,
) -> tuple[str | None, dict[str, Any] | None]:
    """Loads as zeroshard does, but first imports a directory that DeepSpeed wrote (ZeRO 1 to 3, universal).

    Rank 0 writes the imported checkpoint to ``.zeroshard-import-*`` in ``load_dir``, and deletes it when all ranks have
    loaded it, or when the load has failed. Returns the path of DeepSpeed's checkpoint. No code in the pickles runs.
    """
    root = os.fsdecode(load_dir)
    foreign = None

    def look() -> None:
        nonlocal foreign
        foreign = find_deepspeed(root, tag, universal_first=_universal_first(run.parsed))

    together(run, look, "load_checkpoint")
    _check_all_see(run, root, foreign)
    options = (load_module_strict, load_optimizer_states, load_lr_scheduler_states, load_module_only)
    if foreign is None:
        return checkpoint.load(run, load_dir, tag, *options, strict, rank_state)
    imported = f"{root.rstrip('/') or '/'}/.zeroshard-import-{_common_number(run):x}"

    def convert_there() -> None:
        if run.rank != 0:
            return
        log(f"{foreign} was written by DeepSpeed: it is imported. `zeroshard checkpoint convert` does this once")
        try:
            os.mkdir(imported, 0o700)
        except OSError as error:
            raise _C.IoError(
                f"cannot import {foreign} into a directory in {root} ({error}): import it by `zeroshard checkpoint "
                f"convert {foreign} OUT`, and load OUT"
            ) from error
        for note in convert(foreign, imported, tag="imported")[1]:
            log(f"not imported: {note}")

    try:
        together(run, convert_there, "load_checkpoint")
        _, client_state = checkpoint.load(run, imported, "imported", *options, True, rank_state)
        together(run, lambda: None, "load_checkpoint")  # waits until all ranks have read it
    finally:
        if run.rank == 0:
            shutil.rmtree(imported, ignore_errors=True)
    return foreign, client_state


def find_deepspeed(root: str, tag: str | int | None = None, universal_first: bool = False) -> str | None:
    """Returns the directory of the DeepSpeed checkpoint that ``root`` and ``tag`` name.

    Returns None if there is none, or if they name a checkpoint of zeroshard. With ``universal_first``, prefers a
    universal checkpoint to DeepSpeed's other ones and, without a ``tag``, to one of zeroshard. Raises ``ValueError``
    for a checkpoint of ZeRO stage 0, because it cannot be imported.
    """
    found = (universal.find, deepspeed.find) if universal_first else (deepspeed.find, universal.find)
    if tag is None:
        if not universal_first and _names_ours(root):
            return None
        directory = next((directory for find in found if (directory := find(root)) is not None), None)
        named = named_below(root, "latest")
    else:
        named = os.path.join(root, str(tag))
        if os.path.lexists(os.path.join(named, "manifest.json")):
            return None
        directory = next((directory for find in found if (directory := find(named)) == named), None)
    if directory is None and named is not None and os.path.exists(os.path.join(named, _MODEL_FILE)):
        raise ValueError(
            f"{named} has DeepSpeed's {_MODEL_FILE}, but neither *_optim_states.pt nor zero/: checkpoints of ZeRO "
            "stages 1 to 3 and universal ones are imported, those of stage 0 are not"
        )
    return directory


def _names_ours(root: str) -> bool:
    """Returns whether ``latest`` names a checkpoint of zeroshard. DeepSpeed can have used the same directory before."""
    below = named_below(root, "latest")
    return below is not None and os.path.lexists(os.path.join(below, "manifest.json"))


def _universal_first(parsed: _C.ParsedConfig) -> bool:
    return any(line.startswith("checkpoint.load_universal = true") for line in parsed.without_effect)


def _check_all_see(run: Run, root: str, foreign: str | None) -> None:
    seen = torch.tensor(list(os.fsencode(os.path.basename(foreign) if foreign else "")), dtype=torch.uint8)
    if any(run.core.differ_among_ranks([seen])):
        raise ValueError(
            f"load_checkpoint: rank {run.rank} finds "
            + (f"DeepSpeed's checkpoint {foreign}" if foreign else f"no checkpoint of DeepSpeed in {root}")
            + ", and other ranks find something else: all ranks must see the same files, and ask for the same tag"
        )


def _common_number(run: Run) -> int:
    """Returns a random number that is the same on every rank."""
    number = torch.tensor(int.from_bytes(os.urandom(7), "little"))
    if run.world_size > 1:
        number = number.to(run.device)
        dist.broadcast(number, 0)
    return int(number.item())


def clone_tensors_for_torch_save(item: Any, device: torch.device | str = _CPU) -> Any:
    """Returns a copy of ``item``. Each tensor, also in lists, tuples and dicts, gets its own memory on ``device``."""
    if isinstance(item, torch.Tensor):
        own = item.detach().to(device)
        return own.clone() if own.data_ptr() == item.data_ptr() else own
    if isinstance(item, dict):
        made = copy.copy(item)  # a defaultdict is not made of its items alone
        for key, value in item.items():  # update() of a Counter adds, and that of a ModelOutput raises
            made[key] = clone_tensors_for_torch_save(value, device)
        return made
    if isinstance(item, list):
        return [clone_tensors_for_torch_save(value, device) for value in item]
    if isinstance(item, tuple):
        parts = [clone_tensors_for_torch_save(value, device) for value in item]
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return item
