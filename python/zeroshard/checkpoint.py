"""``engine.save_checkpoint`` and ``engine.load_checkpoint``: what Python adds to the core's state.

Everything that is not a tensor is JSON: nothing in a checkpoint can run code.
"""

from __future__ import annotations

import base64
import json
import math
import os
import random
import sys
import zlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import _C

if TYPE_CHECKING:
    from .engine import Engine

_CLIENT = "client"
_BUFFER = "buffer"
_OPTIMIZER = "optimizer."  # kinds of an optimizer outside: "optimizer.exp_avg"


# -- values as JSON --------------------------------------------------------------------------------------------------


def encode(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    """What ``json`` can write, and how to get ``value`` back; tensors go to ``tensors`` under the name of their place.

    Raises ``ValueError`` naming the place of a value that is no number, text, tensor, list, tuple, dict or None.
    """
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return {
                "__scalar__": encode(value.item(), where, tensors),
                "dtype": str(value.dtype).removeprefix("torch."),
            }
        tensors[where] = value.detach().cpu().contiguous()
        return {"__tensor__": where}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"__float__": str(value)}
    if isinstance(value, (list, tuple)):
        items = [encode(item, f"{where}[{index}]", tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"__tuple__": items}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {key: encode(item, f"{where}.{key}", tensors) for key, item in value.items()}
        pairs = [
            [encode(key, f"{where} (a key)", tensors), encode(item, f"{where}[{key!r}]", tensors)]
            for key, item in value.items()
        ]
        return {"__dict__": pairs}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a numpy scalar
        return encode(value.item(), where, tensors)
    raise ValueError(
        f"{where} is a {type(value).__name__}, and a checkpoint holds numbers, text, tensors, lists, tuples and dicts "
        "only (it runs no code when it is loaded): convert it"
    )


def decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The inverse of ``encode``."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "__tensor__" in value:
        return tensors[value["__tensor__"]]
    if "__scalar__" in value:
        dtype = getattr(torch, value["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"the checkpoint has a scalar of the unknown dtype {value['dtype']!r}")
        return torch.tensor(decode(value["__scalar__"], tensors), dtype=dtype)
    if "__float__" in value:
        return float(value["__float__"])
    if "__tuple__" in value:
        return tuple(decode(item, tensors) for item in value["__tuple__"])
    if "__dict__" in value:
        return {decode(key, tensors): decode(item, tensors) for key, item in value["__dict__"]}
    return {key: decode(item, tensors) for key, item in value.items()}


# -- random numbers --------------------------------------------------------------------------------------------------


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of all generators of this process that training uses."""
    state = {"python": random.getstate(), "torch": _to_text(torch.get_rng_state())}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)
    if device.type == "cuda":
        state["cuda"] = _to_text(torch.cuda.get_rng_state(device))
    return encode(state, "random", {})


def restore_random_state(saved: dict[str, Any], device: torch.device) -> None:
    state = decode(saved, {})
    if "python" in state:  # not from a C++ program
        random.setstate(state["python"])
    torch.set_rng_state(_from_text(state["torch"]))
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(_from_text(state["cuda"]), device)


def _to_text(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _from_text(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


# -- saving ----------------------------------------------------------------------------------------------------------


def save(
    engine: Engine,
    save_dir: str | os.PathLike,
    tag: str | int | None,
    client_state: dict[str, Any] | None,
    save_latest: bool,
    exclude_frozen_parameters: bool,
) -> None:
    tensors: dict[str, torch.Tensor] = {}
    state = encode(
        {
            "global_steps": engine.global_steps,
            "micro_steps": engine.micro_steps,
            "global_samples": engine.global_samples,
            "skipped_steps": engine.skipped_steps,
            "param_groups": [_without_params(group) for group in engine.optimizer.param_groups],
            "lr_scheduler": _state_of(engine.lr_scheduler),
            "data": _state_of(engine.training_dataloader),
            "client": client_state or {},
        },
        _CLIENT,
        tensors,
    )
    slices, scalars = _external_states(engine)
    buffers = _own_buffers(engine)
    if engine.rank() == 0:
        buffers += [_whole(name, _CLIENT, tensor) for name, tensor in tensors.items()]
    rank_state = {"random": random_state(engine.device), "optimizer": encode(scalars, "optimizer", {})}
    contents = _C.CheckpointContents(
        state=json.dumps(state, allow_nan=False),
        rank_state=json.dumps(rank_state, allow_nan=False),
        buffers=buffers,
        optimizer=slices,
    )
    engine._core.save_checkpoint(
        os.fspath(save_dir),
        f"global_step{engine.global_steps}" if tag is None else str(tag),
        engine.global_steps,
        contents,
        latest=save_latest,
        exclude_frozen=exclude_frozen_parameters,
    )


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _state_of(thing: Any) -> Any:
    return thing.state_dict() if hasattr(thing, "state_dict") else None


def _whole(name: str, kind: str, tensor: torch.Tensor) -> _C.TensorState:
    return _C.TensorState(name, kind, tensor.detach().contiguous(), list(tensor.shape))


def _buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The buffers of the model's state_dict: the persistent ones."""
    found = []
    for prefix, child in module.named_modules():
        for name, buffer in child._buffers.items():
            if buffer is not None and name not in child._non_persistent_buffers_set:
                found.append((f"{prefix}.{name}" if prefix else name, buffer))
    return found


def save_weights(engine: Engine, save_dir: str | os.PathLike, name: str, exclude_frozen_parameters: bool) -> None:
    stem, extension = os.path.splitext(name)
    engine._core.save_weights(
        os.fspath(save_dir),
        (stem if extension in (".bin", ".pt", ".pth") else name.removesuffix(".safetensors")) + ".safetensors",
        exclude_frozen=exclude_frozen_parameters,
        buffers=[_whole(buffer, _BUFFER, tensor) for buffer, tensor in _buffers(engine.module)],
    )


def _own_buffers(engine: Engine) -> list[_C.TensorState]:
    """The buffers that this rank saves: rank 0 all, the others those whose values differ among ranks."""
    buffers = _buffers(engine.module)
    differs = set(range(len(buffers)))
    if engine.world_size() > 1 and buffers:
        hashes = [zlib.crc32(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()) for _, tensor in buffers]
        extremes = torch.tensor(hashes + [-value for value in hashes], device=engine.device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
        highest, lowest = extremes.tolist()[: len(buffers)], extremes.tolist()[len(buffers) :]
        differs = {index for index in differs if highest[index] != -lowest[index]}
    if engine.rank() == 0:
        return [_whole(name, _BUFFER, tensor) for name, tensor in buffers]
    return [_whole(*_rank_buffer(engine, buffers[index][0]), buffers[index][1]) for index in sorted(differs)]


def _rank_buffer(engine: Engine, name: str) -> tuple[str, str]:
    """Name and kind under which this rank's own values of a buffer are saved."""
    return name, _BUFFER if engine.rank() == 0 else f"{_BUFFER}@{engine.rank()}"


def _external_states(engine: Engine) -> tuple[list[_C.TensorState], dict[str, dict[str, Any]]]:
    """The states of an optimizer of the user's: stretches of parameters, and by parameter what is not a stretch."""
    slices: list[_C.TensorState] = []
    scalars: dict[str, dict[str, Any]] = {}
    for part, param in engine._external_params():
        for kind, value in engine._external.state.get(param, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == param.shape:
                slices.append(
                    _C.TensorState(part.param, _OPTIMIZER + kind, value.detach().contiguous(), part.shape, part.begin)
                )
            else:
                scalars.setdefault(part.param, {})[kind] = value
    return slices, scalars


# -- loading ---------------------------------------------------------------------------------------------------------


def load(
    engine: Engine,
    load_dir: str | os.PathLike,
    tag: str | int | None,
    load_module_strict: bool,
    load_optimizer_states: bool,
    load_lr_scheduler_states: bool,
    load_module_only: bool,
    strict: bool,
) -> tuple[str | None, dict[str, Any] | None]:
    with_optimizer = load_optimizer_states and not load_module_only and engine._trains
    tensors: dict[str, torch.Tensor] = {}
    buffers = dict(_buffers(engine.module))
    states: list[tuple[torch.Tensor, str, torch.Tensor]] = []  # of an optimizer outside
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # of buffers that are not contiguous

    def others(infos: list[_C.TensorInfo]) -> list[_C.TensorState]:
        chosen = []
        own = {(info.name, info.kind) for info in infos}
        for info in infos:
            if info.kind == _CLIENT:
                tensors[info.name] = torch.empty(info.shape, dtype=_dtype(info.dtype))
                chosen.append(_whole(info.name, _CLIENT, tensors[info.name]))
            elif info.kind == _BUFFER and info.name in buffers:
                mine = _rank_buffer(engine, info.name)
                name, kind = mine if mine in own else (info.name, _BUFFER)
                buffer = buffers[info.name]
                if not buffer.is_contiguous():
                    copies.append((buffer, buffer.contiguous()))
                    buffer = copies[-1][1]
                chosen.append(_whole(name, kind, buffer))
        missing = buffers.keys() - {info.name for info in infos if info.kind == _BUFFER}
        if missing and load_module_strict:
            raise ValueError(
                f"buffers that the checkpoint does not have: {', '.join(sorted(missing)[:5])}. To load what it has, "
                "pass load_module_strict=False"
            )
        if with_optimizer and engine._external is not None:
            chosen += _external_wants(engine, infos, states)
        return chosen

    loaded = engine._core.load_checkpoint(
        os.fspath(load_dir),
        tag=None if tag is None else str(tag),
        strict=strict,
        all_params=load_module_strict,
        optimizer=with_optimizer,
        others=others,
    )
    if loaded is None:
        return None, None
    for buffer, copy in copies:
        buffer.copy_(copy)
    state = decode(json.loads(loaded.state), tensors)
    if not load_module_only:
        if with_optimizer:
            _restore_optimizer(engine, state, states, [json.loads(text) for text in loaded.rank_states])
        if load_lr_scheduler_states:
            _restore(engine.lr_scheduler, state.get("lr_scheduler"))
        _restore(engine.training_dataloader, state.get("data"))
        for name in ("global_steps", "micro_steps", "global_samples", "skipped_steps"):
            setattr(engine, name, state.get(name, 0))
        _restore_random(engine, loaded.rank_states)
    return os.path.join(os.fspath(load_dir), loaded.tag), state["client"]


def _restore(thing: Any, state: Any) -> None:
    if state is not None and hasattr(thing, "load_state_dict"):
        thing.load_state_dict(state)


def _dtype(name: str) -> torch.dtype:
    return {
        "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
        "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    }[name]  # fmt: skip


def _external_wants(
    engine: Engine, infos: list[_C.TensorInfo], states: list[tuple[torch.Tensor, str, torch.Tensor]]
) -> list[_C.TensorState]:
    kinds: dict[str, list[_C.TensorInfo]] = {}
    for info in infos:
        if info.kind.startswith(_OPTIMIZER):
            kinds.setdefault(info.name, []).append(info)
    chosen = []
    for part, param in engine._external_params():
        for info in kinds.get(part.param, []):
            tensor = torch.empty(param.shape, dtype=_dtype(info.dtype), device=param.device)
            states.append((param, info.kind.removeprefix(_OPTIMIZER), tensor))
            chosen.append(_C.TensorState(part.param, info.kind, tensor, part.shape, part.begin))
    return chosen


def _restore_optimizer(
    engine: Engine,
    state: dict[str, Any],
    states: list[tuple[torch.Tensor, str, torch.Tensor]],
    rank_states: list[dict[str, Any]],
) -> None:
    groups = engine.optimizer.param_groups
    if "param_groups" not in state:  # saved by a C++ program, which has one group and no other settings than its file's
        return
    if len(groups) != len(state["param_groups"]):
        raise ValueError(
            f"the optimizer has {len(groups)} param groups, the checkpoint {len(state['param_groups'])}: "
            "load with load_optimizer_states=False to keep this optimizer's settings"
        )
    for group, saved in zip(groups, state["param_groups"], strict=True):
        group.update(saved)
    if engine._external is None:
        return
    scalars: dict[str, dict[str, Any]] = {}
    for rank_state in rank_states:
        scalars.update(decode(rank_state.get("optimizer", {}), {}))
    for param, kind, tensor in states:
        engine._external.state[param][kind] = tensor
    for part, param in engine._external_params():
        engine._external.state[param].update(_own_copies(scalars.get(part.param, {})))


def _own_copies(values: dict[str, Any]) -> dict[str, Any]:
    """Every parameter needs scalar tensors of its own: optimizers update them in place."""
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in values.items()}


def _restore_random(engine: Engine, rank_states: list[str]) -> None:
    """Each rank goes on with its own numbers; ranks that were not there before start a stream of their own."""
    rank, saved_ranks = engine.rank(), len(rank_states)
    saved = json.loads(rank_states[rank % saved_ranks]).get("random")
    if saved is None:  # imported: the run's own seed holds
        return
    restore_random_state(saved, engine.device)
    if rank >= saved_ranks:
        seed = torch.randint(2**62, (1,)).item() + rank
        random.seed(seed)
        torch.manual_seed(seed)
