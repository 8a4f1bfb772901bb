"""Reads DeepSpeed's universal checkpoints, which have a directory of whole tensors for each parameter.

``zero/NAME/`` has ``fp32.pt``, the moments and ``step.pt``. ``zero/optimizer_state.pt`` has the param groups. The files
with the model's states are copies of those in the original checkpoint.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Any

import torch

from .contents import MOMENTS, Contents, count
from .deepspeed import Import, number_of, read_dict
from .files import named_below
from .pickles import load_file

_MODEL_FILE = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


def find(source: str) -> str | None:
    """Returns the directory of one checkpoint, or None.

    It is ``source``, or the directory that the file ``latest_universal`` or else ``latest`` in ``source`` names.
    """
    if _is_checkpoint(source):
        return source
    below = named_below(source, "latest_universal") or named_below(source, "latest")
    return below if below is not None and _is_checkpoint(below) else None


def _is_checkpoint(directory: str) -> bool:
    zero = os.path.join(directory, "zero")
    return os.path.isdir(zero) and bool(_model_files(directory))


def _model_files(directory: str) -> dict[int, str]:
    """Returns the files with the model's states by the rank that wrote them."""
    found = {}
    for name in os.listdir(directory):
        match = _MODEL_FILE.fullmatch(name)
        if match is not None:
            if int(match[2]) != 0:
                raise ValueError(
                    f"{os.path.join(directory, name)}: checkpoints of tensor and pipeline parallel runs cannot be "
                    "imported"
                )
            found[int(match[1] or 0)] = name
    return found


def read(directory: str) -> Contents:
    names = _model_files(directory)
    if sorted(names) != list(range(len(names))):
        raise ValueError(f"{directory} has the model states of the ranks {sorted(names)}: some are missing")
    models = [read_dict(os.path.join(directory, names[rank])) for rank in sorted(names)]
    path = os.path.join(directory, "zero", "optimizer_state.pt")
    optimizer = read_dict(path) if os.path.exists(path) else {}
    stage = number_of(optimizer.get("zero_stage"))
    if stage not in (1, 2, 3):
        stage = 3 if any(model.get("frozen_param_fragments") is not None for model in models) else 2
    return _UniversalImport(directory, stage, models, optimizer).contents()


class _UniversalImport(Import):
    def __init__(self, directory: str, stage: int, models: list[dict[str, Any]], optimizer: dict[str, Any]) -> None:
        super().__init__(directory, stage, models, [optimizer])
        groups = optimizer.get("param_groups")
        self._bases = [{"state": {}, "param_groups": groups if isinstance(groups, list) else []}]
        steps = [part.get("step") for part in (*_values(optimizer), *(groups or [])) if isinstance(part, dict)]
        steps = [count(step) for step in steps if step is not None]
        self._common_updates = max(steps) if steps else self._contents.step  # for parameters without a step.pt
        self._contents.source = f"DeepSpeed {self._model.get('ds_version')}, universal"

    def _add_trained(self) -> None:
        shapes = self._model["param_shapes"]
        known = set(self._model["module"])  # buffers, frozen and tied parameters come from there
        for group in shapes if isinstance(shapes, list) else [shapes]:
            for name, shape in group.items():
                known.add(name)
                self._add_parameter(name, tuple(shape))
        more = sorted(set(os.listdir(os.path.join(self._directory, "zero"))) - known - {"optimizer_state.pt"})
        self._contents.notes += [f"zero/{name}, which is no parameter of the model states" for name in more]

    def _add_parameter(self, name: str, shape: tuple[int, ...]) -> None:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise ValueError(f"{self._directory}: {name!r} is no name of a parameter")
        folder = os.path.join(self._directory, "zero", name)
        if not os.path.isdir(folder):
            raise ValueError(f"{self._directory}: the parameter '{name}' has no directory in zero/")
        step = os.path.join(folder, "step.pt")
        updates = count(_param(load_file(step))) if os.path.exists(step) else self._common_updates
        for kind, file in (("weight", "fp32.pt"), *((moment, f"{moment}.pt") for moment in MOMENTS)):
            path = os.path.join(folder, file)
            if kind == "weight" or os.path.exists(path):
                self._add(name, kind, shape, self._reader_of(path, shape), updates)

    def _reader_of(self, path: str, shape: tuple[int, ...]) -> Callable[[torch.Tensor], Any]:
        def tensor() -> torch.Tensor:
            found = _param(load_file(path))
            if not isinstance(found, torch.Tensor) or found.numel() != math.prod(shape):
                what = f"{found.numel()} elements" if isinstance(found, torch.Tensor) else "no tensor"
                raise ValueError(f"{path} has {what}, and the parameter has the shape {list(shape)}")
            return found

        tensor()  # reads the tensor now, so that errors are raised before anything is written
        return lambda out: out.copy_(tensor().detach().reshape(out.shape))


def _values(optimizer: dict[str, Any]) -> list[Any]:
    """Returns the optimizer states of stage 3's flat vectors, which ``optimizer_state.pt`` has, too."""
    inner = optimizer.get("optimizer_state_dict")
    states = inner.get("state") if isinstance(inner, dict) else None
    return list(states.values()) if isinstance(states, dict) else []


def _param(value: Any) -> Any:
    """Returns the tensor in ``value``, which stages 1 and 2 keep in a dict together with the way to merge it."""
    return value.get("param") if isinstance(value, dict) else value
