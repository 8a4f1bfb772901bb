"""Reads DeepSpeed's ZeRO checkpoints.

Stages 1 and 2 keep each param group as one flat vector of its parameters, with padding at the end and, in checkpoints
with ``param_alignment_paddings``, after each parameter. They cut the vector into one partition per rank. Stage 3 pads
each parameter to a multiple of the number of ranks, and cuts each parameter by itself. A rank keeps its pieces one
after another, in one or several flat vectors.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .contents import GROUP_KEYS, MOMENTS, Contents, Entry, count, whole
from .files import named_below
from .pickles import Placeholder, load_file

_OPTIMIZER_FILE = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_OWN_KEYS = {
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd", "sparse_tensor_module_names",
    "skipped_steps", "global_steps", "global_samples", "dp_world_size", "mp_world_size", "ds_config", "ds_version",
    "checkpoint_parallel_dimensions", "num_experts", "autoep_layers",
}  # fmt: skip


def find(source: str) -> str | None:
    """Returns the directory of one checkpoint: ``source``, or the one that ``latest`` in it names; else None."""
    if _optimizer_files(source):
        return source
    below = named_below(source, "latest")
    return below if below is not None and _optimizer_files(below) else None


def _optimizer_files(directory: str) -> list[str]:
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return [name for name in names if name.endswith("_optim_states.pt")]


def read(directory: str) -> Contents:
    optimizers = _read_optimizers(directory)
    world_size = len(optimizers)
    stage = number_of(optimizers[0].get("zero_stage"))
    partitions = optimizers[0].get("partition_count")
    partitions = max(partitions) if isinstance(partitions, list) and partitions else partitions
    if partitions != world_size:
        raise ValueError(f"{directory} is of {partitions} ranks, and has the files of {world_size}: all are needed")
    if stage not in (1, 2, 3):
        raise ValueError(f"{directory} is of ZeRO stage {stage}: stages 1, 2 and 3 can be imported")
    ranks = range(world_size if stage == 3 else 1)
    names = [f"zero_pp_rank_{rank}_mp_rank_00" if stage == 3 else "mp_rank_00" for rank in ranks]
    models = [read_dict(os.path.join(directory, f"{name}_model_states.pt")) for name in names]
    return Import(directory, stage, models, optimizers).contents()


def read_dict(path: str) -> dict[str, Any]:
    if not os.path.exists(path):
        raise ValueError(f"{path} is missing")
    value = load_file(path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a file of a DeepSpeed checkpoint")
    return value


def _read_optimizers(directory: str) -> list[dict[str, Any]]:
    found = {}
    for name in _optimizer_files(directory):
        match = _OPTIMIZER_FILE.fullmatch(name)
        if match is None or int(match[2]) != 0:
            raise ValueError(
                f"{os.path.join(directory, name)}: checkpoints of experts or of tensor and pipeline parallel runs "
                "cannot be imported"
            )
        found[int(match[1])] = name
    if sorted(found) != list(range(len(found))):
        raise ValueError(f"{directory} has the optimizer states of the ranks {sorted(found)}: some are missing")
    states = []
    for rank in sorted(found):
        path = os.path.join(directory, found[rank])
        states.append(read_dict(path).get("optimizer_state_dict"))
        if not isinstance(states[-1], dict) or "zero_stage" not in states[-1]:
            raise ValueError(f"{path} holds no states of ZeRO")
    return states


def number_of(value: Any) -> Any:
    """Returns the value of a member of an enumeration, or ``value`` itself if it is no such member."""
    return value.arguments[0] if isinstance(value, Placeholder) and value.arguments else value


@dataclass
class _Flat:
    """Several vectors that can be read as if they were one."""

    parts: list[torch.Tensor]

    @property
    def numel(self) -> int:
        return sum(part.numel() for part in self.parts)

    def read(self, begin: int, out: torch.Tensor) -> None:
        """Fills the 1-D ``out`` with the elements from ``begin`` on."""
        at = 0
        for part in self.parts:
            first, last = max(begin, at), min(begin + out.numel(), at + part.numel())
            if first < last:
                out[first - begin : last - begin].copy_(part.detach().reshape(-1)[first - at : last - at])
            at += part.numel()


class Import:
    def __init__(
        self, directory: str, stage: int, models: list[dict[str, Any]], optimizers: list[dict[str, Any]]
    ) -> None:
        self._directory, self._stage, self._models, self._optimizers = directory, stage, models, optimizers
        self._model = models[0]
        self._world_size = len(optimizers)
        self._aliases: dict[str, list[str]] = {}
        for alias, name in (self._model.get("shared_params") or {}).items():
            self._aliases.setdefault(name, []).append(alias)
        key = "optimizer_state_dict" if stage == 3 else "base_optimizer_state"
        bases = [state.get(key) for state in optimizers]
        self._bases = bases if all(isinstance(b, dict) and isinstance(b.get("state"), dict) for b in bases) else []
        step = count(self._model.get("global_steps"))
        version = self._model.get("ds_version")
        self._contents = Contents(f"DeepSpeed {version}, ZeRO {stage}, {self._world_size} rank(s)", step)

    def contents(self) -> Contents:
        contents = self._contents
        if not self._bases:
            contents.notes.append("the optimizer's states: of a form that is not known (moments start at zero)")
        for key in ("param_shapes", "module", "buffer_names"):
            if key not in self._model:
                raise ValueError(f"{self._directory}: the model states have no '{key}'")
        self._add_trained()
        self._add_frozen()
        module = self._model["module"]
        for name in self._model["buffer_names"] or []:
            if isinstance(module.get(name), torch.Tensor):
                contents.entries.append(whole(name, "buffer", module[name]))
        self._add_state()
        return contents

    # -- parameters --

    def _add_trained(self) -> None:
        shapes = self._model["param_shapes"]
        groups = shapes if isinstance(shapes, list) else [shapes]
        vectors = {"weight": self._weights()}
        for kind in MOMENTS:
            moments = self._moments(kind)
            if moments is not None:
                vectors[kind] = moments
        paddings = self._optimizers[0].get("param_alignment_paddings") or []
        if self._stage == 3:
            groups = [{name: shape for group in groups for name, shape in group.items()}]
        elif len(vectors["weight"][0]) != len(groups):
            raise ValueError(
                f"{self._directory} has {len(groups)} param groups, but {len(vectors['weight'][0])} vectors of "
                "weights, expected one vector for each group: the checkpoint is damaged"
            )
        for index, group in enumerate(groups):
            at = 0
            for position, (name, shape) in enumerate(group.items()):
                numel = math.prod(shape)
                for kind, flats in vectors.items():
                    self._add(name, kind, tuple(shape), self._reader(flats, index, at, numel), self._updates(index, at))
                at += -(-numel // self._world_size) if self._stage == 3 else numel
                if self._stage != 3 and index < len(paddings):
                    at += paddings[index][position]
            self._check(index, at, vectors)

    def _add(self, name: str, kind: str, shape: tuple[int, ...], fill: Callable, updates: int) -> None:
        aliases = self._aliases.get(name, [])
        entry = Entry(name, kind, torch.float32, shape, fill, list(aliases), trainable=True, updates=updates)
        self._contents.entries.append(entry)

    def _weights(self) -> list[list[torch.Tensor]]:
        key = "fp32_flat_groups" if self._stage == 3 else "single_partition_of_fp32_groups"
        vectors = [state.get(key) for state in self._optimizers]
        for rank, own in enumerate(vectors):
            if not isinstance(own, list) or not all(isinstance(vector, torch.Tensor) for vector in own):
                raise ValueError(f"{self._directory}: rank {rank} has no '{key}' (an optimizer offloaded to NVMe?)")
        return vectors

    def _moments(self, kind: str) -> list[list[torch.Tensor]] | None:
        """Returns moments, indexed by rank and vector, or None if the optimizer has no such state.

        Raises ``ValueError`` if only some vectors have the state.
        """
        found = [[base["state"].get(index, {}).get(kind) for index in range(len(own))]
                 for base, own in zip(self._bases, self._weights(), strict=False)]  # fmt: skip
        flat = [moment for own in found for moment in own]
        if not flat or not any(isinstance(moment, torch.Tensor) for moment in flat):
            return None
        if not all(isinstance(moment, torch.Tensor) for moment in flat):
            raise ValueError(f"{self._directory}: some ranks or param groups have '{kind}' and others do not")
        return found

    def _reader(self, vectors: list[list[torch.Tensor]], index: int, at: int, numel: int) -> Callable:
        def fill(out: torch.Tensor) -> None:
            out = out.view(-1)
            if self._stage != 3:
                _Flat([own[index] for own in vectors]).read(at, out)
                return
            piece = -(-numel // self._world_size)
            for rank, own in enumerate(vectors):
                _Flat(own).read(at, out[rank * piece : (rank + 1) * piece])

        return fill

    def _check(self, index: int, used: int, vectors: dict[str, list[list[torch.Tensor]]]) -> None:
        """Raises ``ValueError`` if the vectors do not have as many elements as the parameters with padding."""
        for kind, flats in vectors.items():
            sizes = [_Flat(own if self._stage == 3 else [own[index]]).numel for own in flats]
            have, slack = (min(sizes), 0) if self._stage == 3 else (sum(sizes), 2 * self._world_size)
            if not used <= have <= used + slack or (self._stage == 3 and len(set(sizes)) > 1):
                raise ValueError(
                    f"{self._directory}: '{kind}' has {have} elements of param group {index}, the parameters {used}"
                )

    def _updates(self, group: int, at: int) -> int:
        if not self._bases:
            return 0
        base, index = self._bases[0], group
        if self._stage == 3:  # find the vector in which the parameter starts
            begin = 0
            for index, vector in enumerate(self._weights()[0]):  # noqa: B007
                begin += vector.numel()
                if at < begin:
                    break
        step = base["state"].get(index, {}).get("step")
        groups = base.get("param_groups") or [{}]
        if step is None:
            step = groups[min(group, len(groups) - 1)].get("step")
        return self._contents.step if step is None else count(step)

    def _add_frozen(self) -> None:
        """Adds frozen parameters. Stage 3 keeps them in pieces.

        Stages 1 and 2 keep them whole among the module's tensors.
        """
        module, entries = self._model["module"], self._contents.entries
        shapes = self._model.get("frozen_param_shapes") or {}
        known = {entry.name for entry in entries} | set(self._model["buffer_names"] or [])
        known |= {alias for aliases in self._aliases.values() for alias in aliases}
        if self._stage == 3:
            for name, shape in shapes.items():
                pieces = [model["frozen_param_fragments"][name] for model in self._models]
                flat = _Flat(pieces)
                if flat.numel < math.prod(shape):
                    raise ValueError(f"{self._directory}: the frozen '{name}' has {flat.numel} elements, not {shape}")
                fill = lambda out, flat=flat: flat.read(0, out.view(-1))  # noqa: E731
                entries.append(
                    Entry(name, "weight", pieces[0].dtype, tuple(shape), fill, list(self._aliases.get(name, [])))
                )
            return
        for name, tensor in module.items():
            if name not in known and isinstance(tensor, torch.Tensor):
                entries.append(whole(name, "weight", tensor, aliases=list(self._aliases.get(name, []))))

    # -- everything else --

    def _add_state(self) -> None:
        model, contents = self._model, self._contents
        counts = {name: count(model.get(name)) for name in ("global_steps", "global_samples", "skipped_steps")}
        config = model.get("ds_config")
        accumulation = config.get("gradient_accumulation_steps") if isinstance(config, dict) else None
        accumulation = accumulation if isinstance(accumulation, int) else 1
        contents.state = {**counts, "micro_steps": counts["global_steps"] * accumulation}
        contents.state["lr_scheduler"] = model.get("lr_scheduler")
        if self._bases:
            groups = self._bases[0].get("param_groups") or []
            contents.state["param_groups"] = [{key: g[key] for key in GROUP_KEYS if key in g} for g in groups]
            kinds = {kind for state in self._bases[0]["state"].values() for kind in state} - {"step", *MOMENTS}
            contents.notes += [f"the optimizer's state '{kind}'" for kind in sorted(kinds)]
        contents.client = {key: value for key, value in model.items() if key not in _OWN_KEYS}
        contents.notes += [f"'{key}'" for key in ("data_sampler", "random_ltd") if model.get(key) is not None]
        scaler = self._optimizers[0].get("loss_scaler")
        if isinstance(scaler, Placeholder) and isinstance(scaler.get("cur_scale"), (int, float)):
            contents.loss_scale = {
                "scale": scaler.get("cur_scale"),
                "iteration": scaler.get("cur_iter", 0),
                "last_overflow": scaler.get("last_overflow_iter", -1),
                "hysteresis_left": scaler.get("cur_hysteresis", 1),
                "dynamic": scaler.get("dynamic", False),
            }
