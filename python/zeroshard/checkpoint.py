"""Implements ``engine.save_checkpoint`` and ``engine.load_checkpoint``, with the states that the core does not have.

Checkpoints have everything except tensors as JSON, so that loading one cannot run code.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import random
import sys
from typing import Any

import torch

from . import _C
from .encoding import DTYPES, check_tensor, decode, encode
from .half_load import note_half_load
from .messages import log
from .names import plain_name, plain_names
from .optimizer import take_settings
from .pretrained import save_config
from .run import Run, state_of
from .together import naming_causes, together

_CLIENT = "client"
_RANK_STATE = "rank_state"
_BUFFER = "buffer"
# A tensor of a checkpoint has a name and a kind. This is the prefix of the kinds of states of an external optimizer, as
# in "optimizer.exp_avg".
_OPTIMIZER = "optimizer."
# The prefix of the kinds for an external optimizer with tables (see _has_tables()), as in "stretch.absmax@1" for the
# state "absmax" that rank 1 saves. Each rank saves each state of a slice as one tensor, which a load cannot cut.
_OF_STRETCH = "stretch."


def _check_at_boundary(run: Run) -> None:
    if run.core.has_pending_gradients:
        raise _C.StateError(
            "load_checkpoint between a backward pass and its step: the accumulated gradients would be lost, or join "
            "those of other parameters. Call it after the step() that applies them"
        )


# -- random numbers --------------------------------------------------------------------------------------------------


def random_state(device: torch.device) -> dict[str, Any]:
    """Returns the states of all random generators of this process that training uses."""
    state = {"python": random.getstate(), "torch": _to_text(torch.get_rng_state())}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)
    if device.type != "cpu":
        state[device.type] = _to_text(torch.get_device_module(device).get_rng_state(device))
    return encode(state, "random", {})


def restore_other_random_state(saved: dict[str, Any], device: torch.device) -> None:
    """Restores the states of the random generators that the core does not manage: all but torch's for the CPU."""
    state = decode(saved, {})
    if "python" in state:  # missing if a C++ program has saved the checkpoint
        random.setstate(state["python"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if device.type != "cpu" and device.type in state:
        torch.get_device_module(device).set_rng_state(_from_text(state[device.type]), device)


def _to_text(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _from_text(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


# -- saving ----------------------------------------------------------------------------------------------------------


def save(
    run: Run,
    save_dir: str | os.PathLike,
    tag: str | int | None = None,
    client_state: dict[str, Any] | None = None,
    save_latest: bool = True,
    exclude_frozen_parameters: bool = False,
    in_background: bool | None = None,
    rank_state: dict[str, Any] | None = None,
) -> None:
    """Saves a checkpoint. Collective.

    ``in_background`` says whether to return before the checkpoint is written. None: the configuration says it.
    """
    root, contents = b"", {}
    whole = _some_rank_has_tables(run)

    def collect() -> None:  # does everything that can fail on one rank alone
        nonlocal root, contents
        root = os.fsencode(save_dir)
        contents = _collect(run, client_state, rank_state, exclude_frozen_parameters, whole)

    together(run, collect, "save_checkpoint")
    if run.core.has_pending_gradients and run.rank == 0:
        log(
            f"save_checkpoint between a backward pass and its step: the checkpoint has the state after step "
            f"{run.global_steps}. It has no gradients: who loads it computes those of the next step anew, from the "
            "batch with which that step began. Random numbers go on from where they are now"
        )
    contents["buffers"] = _own_buffers(run, rank_state is not None) + contents["buffers"]
    run.core.save_checkpoint(
        root,
        f"global_step{run.global_steps}" if tag is None else os.fsencode(str(tag)),
        run.global_steps,
        _C.CheckpointContents(**contents),
        latest=save_latest,
        exclude_frozen=exclude_frozen_parameters,
        in_background=in_background,
    )


def _collect(
    run: Run, client_state: dict[str, Any] | None, own_state: dict[str, Any] | None, exclude_frozen: bool, whole: bool
) -> dict[str, Any]:
    for name, buffer in _buffers(run.module):
        check_tensor(buffer, f"buffer '{name}'", "register it with persistent=False to leave it out")
    for param in (param for unit in run.units for param in unit.params):
        if not (exclude_frozen and not param.tensors[0].requires_grad):
            check_tensor(param.tensors[0], f"parameter '{param.names[0]}'", "exclude_frozen_parameters leaves it out")
    tensors: dict[str, torch.Tensor] = {}
    own_tensors: dict[str, torch.Tensor] = {}
    state = _run_state(run, client_state, tensors) if run.rank == 0 else {}
    slices, tables, scalars = _external_states(run, whole)
    rank_state = {"random": random_state(run.device), "optimizer": encode(scalars, "optimizer", None)}
    if own_state is not None:
        _check_is_dict(own_state)
        rank_state[_CLIENT] = encode(own_state, _RANK_STATE, own_tensors)
        state |= {_RANK_STATE: run.world_size} if run.rank == 0 else {}
    return {
        "state": json.dumps(state, allow_nan=False),
        "rank_state": json.dumps(rank_state, allow_nan=False),
        "buffers": [_whole(name, _CLIENT, tensor) for name, tensor in tensors.items()]
        + [_whole(name, _rank_client(run), tensor) for name, tensor in own_tensors.items()]
        + [table for of_kind in tables.values() for table in of_kind],
        "optimizer": slices,
    }


def _run_state(run: Run, client_state: dict[str, Any] | None, tensors: dict[str, torch.Tensor]) -> Any:
    """Returns the state of the run as JSON, and puts its tensors into ``tensors``. Only rank 0 calls it."""
    state = {
        **dict(run.core.progress_at_last_step.counts()),
        "param_groups": [_without_params(group) for group in run.optimizer.param_groups],
        "lr_scheduler": state_of(run.lr_scheduler),
        "data": run.position.at_last_step if run.is_within_step else run.position.now(),
        "client": client_state or {},
    }
    return encode(state, _CLIENT, tensors)


def _rank_client(run: Run) -> str:
    """Returns the kind under which a checkpoint has the tensors of this rank's ``rank_state``."""
    return f"{_CLIENT}@{run.rank}"


def _check_is_dict(rank_state: Any) -> None:
    if not isinstance(rank_state, dict):
        raise ValueError(f"rank_state is a {type(rank_state).__name__}: it must be a dict, that of this rank")


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _whole(name: str, kind: str, tensor: torch.Tensor) -> _C.TensorState:
    return _C.TensorState(name, kind, tensor.detach().contiguous(), list(tensor.shape))


def _buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Returns the buffers that are in the model's state_dict, with their plain names."""
    found = []
    for prefix, child in module.named_modules():
        for name, buffer in child._buffers.items():
            if buffer is not None and name not in child._non_persistent_buffers_set:
                found.append((f"{prefix}.{name}" if prefix else name, buffer))
    plain = plain_names((name, id(buffer)) for name, buffer in found)
    return list({plain[name]: buffer for name, buffer in found}.items())


def save_weights(run: Run, save_dir: str | os.PathLike, name: str, exclude_frozen_parameters: bool) -> None:
    stem, extension = os.path.splitext(name)
    if extension not in (".bin", ".pt", ".pth"):
        stem = name.removesuffix(".safetensors")

    def check() -> None:
        for buffer, tensor in _buffers(run.module):
            check_tensor(tensor, f"buffer '{buffer}'", "register it with persistent=False to leave it out")
        if not os.path.basename(stem):
            raise ValueError(f"save_filename is {name!r}: give the file a name, such as 'model.safetensors'")

    together(run, check, "save_16bit_model")
    run.core.save_weights(
        os.fsencode(save_dir),
        os.fsencode(stem + ".safetensors"),
        exclude_frozen=exclude_frozen_parameters,
        buffers=[_whole(buffer, _BUFFER, tensor) for buffer, tensor in _buffers(run.module)],
    )
    together(run, lambda: save_config(run, save_dir) if run.rank == 0 else None, "save_16bit_model")


def _own_buffers(run: Run, has_rank_state: bool) -> list[_C.TensorState]:
    """Returns the buffers that this rank saves: rank 0 saves all, other ranks those whose values differ among ranks.

    Collective. Raises ``ValueError`` if only some ranks have a ``rank_state``.
    """
    buffers = _buffers(run.module)
    *differs, is_partly_given = run.core.differ_among_ranks(
        [*(tensor for _, tensor in buffers), torch.tensor(has_rank_state)]
    )
    if is_partly_given:
        raise ValueError(
            "save_checkpoint: some ranks have a rank_state and others have none: give it on every rank, {} where "
            "there is nothing to save"
        )
    return [
        _whole(*_rank_buffer(run, name), tensor)
        for (name, tensor), own in zip(buffers, differs, strict=True)
        if own or run.rank == 0
    ]


def _rank_buffer(run: Run, name: str) -> tuple[str, str]:
    """Returns the name and the kind under which a checkpoint has this rank's own values of a buffer."""
    return name, _BUFFER if run.rank == 0 else f"{_BUFFER}@{run.rank}"


def _external_states(
    run: Run, whole: bool
) -> tuple[list[_C.TensorState], dict[str, list[_C.TensorState]], dict[str, dict[str, Any]]]:
    """Returns this rank's states of an external optimizer: slices of parameters, whole tensors by kind, other values.

    A load cuts slices anew for its own ranks. ``whole`` says that some rank has tables (see ``_has_tables``). Every
    rank then saves whole tensors instead of slices. Only a run that cuts each parameter at the same elements can load
    whole tensors. Raises ``ValueError`` for a tensor that a checkpoint cannot hold.
    """
    slices: list[_C.TensorState] = []
    tables: dict[str, list[_C.TensorState]] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for part, param in run.external_params():
        for kind, value in run.external.state.get(param, {}).items():
            if not isinstance(value, torch.Tensor) or (value.dim() == 0 and value.shape != param.shape):
                scalars.setdefault(part.param, {})[kind] = value
                continue
            what = f"the optimizer's state '{kind}' of parameter '{part.param}'"
            check_tensor(value, what, "choose an optimizer with such states")
            own = value.detach().contiguous()
            if whole:
                name = _stretch_of(part, param)
                tables.setdefault(kind, []).append(_whole(name, f"{_OF_STRETCH}{kind}@{run.rank}", own))
            else:
                slices.append(_C.TensorState(part.param, _OPTIMIZER + kind, own, part.shape, part.begin))
    return slices, tables, scalars


def _has_tables(run: Run) -> bool:
    """Returns whether the user's optimizer has tables on this rank: tensors that are no scalars and not elementwise.

    Scales and code tables are examples. If an optimizer has tables, its states with one value per element can be codes,
    which have no meaning without their table.
    """
    stretches = [(param, run.external.state.get(param, {})) for _, param in run.external_params()]
    return any(
        isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape != param.shape
        for param, states in stretches
        for value in states.values()
    )


def _some_rank_has_tables(run: Run) -> bool:
    """Returns whether some rank has tables. Collective, unless the optimizer cannot have any.

    The core's optimizers and external ones that are known to be elementwise have no tables.
    """
    if run.external is None or run.optimizer.is_elementwise:
        return False
    note = "the optimizer has tables"

    def tell() -> None:
        if _has_tables(run):
            raise _C.ValueError(note)

    try:
        together(run, tell, "save_checkpoint")
    except _C.ValueError as error:
        if note not in str(error):
            raise
        return True
    return False


def _stretch_of(part: _C.OptimizerSlice, param: torch.Tensor) -> str:
    """Returns a name for the elements of a parameter that this rank updates, such as "layer.weight[128:256]"."""
    return f"{part.param}[{part.begin}:{part.begin + param.numel()}]"


def warn_of_states(run: Run) -> None:
    """Logs a message if a checkpoint cannot hold the states of an external optimizer, or if a load cannot cut them.

    Called after the first step, because the optimizer makes its states in that step.
    """
    try:
        has_tables = _has_tables(run)
        _, tables, others = _external_states(run, has_tables)
        encode(others, "optimizer", None)
        if has_tables and run.rank == 0:
            log(
                f"{run.optimizer.name} has states with other than a value per element, such as code tables or scales "
                f"({', '.join(sorted(tables))}): only a run with as many ranks and the same stage can load them from a "
                "checkpoint. Any number of ranks can load those of AdamW of the configuration"
            )
    except ValueError as error:
        if run.rank == 0:
            log(
                f"warning: save_checkpoint cannot save {run.optimizer.name}: {error}. Training goes on, and "
                "save_16bit_model saves the weights"
            )


# -- loading ---------------------------------------------------------------------------------------------------------


def load(
    run: Run,
    load_dir: str | os.PathLike,
    tag: str | int | None,
    load_module_strict: bool,
    load_optimizer_states: bool,
    load_lr_scheduler_states: bool,
    load_module_only: bool,
    strict: bool,
    rank_state: dict[str, Any] | None = None,
) -> tuple[str | None, dict[str, Any] | None]:
    def check() -> None:
        _check_at_boundary(run)
        if rank_state is not None:
            _check_is_dict(rank_state)

    together(run, check, "load_checkpoint")
    with_optimizer = load_optimizer_states and not load_module_only and run.trains
    tensors: dict[str, torch.Tensor] = {}
    own_tensors: dict[str, torch.Tensor] = {}  # tensors of rank_state
    buffers = dict(_buffers(run.module))
    states: list[tuple[torch.Tensor, str, torch.Tensor]] = []  # states of the user's optimizer
    # Buffers with their new values. The buffers change only after everything was read.
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    saved: dict[str, Any] = {}  # state of the run

    def others(infos: list[_C.TensorInfo]) -> list[_C.TensorState]:
        # Empties these collections, because an earlier attempt, to load a damaged checkpoint, can have filled them.
        for of_a_damaged_one in (tensors, own_tensors, states, copies):
            of_a_damaged_one.clear()
        chosen = []
        own = {(info.name, info.kind) for info in infos}
        for info in infos:
            if info.kind == _CLIENT:
                tensors[info.name] = torch.empty(info.shape, dtype=_dtype(info))
                chosen.append(_whole(info.name, _CLIENT, tensors[info.name]))
            elif info.kind == _rank_client(run) and rank_state is not None:
                own_tensors[info.name] = torch.empty(info.shape, dtype=_dtype(info))
                chosen.append(_whole(info.name, info.kind, own_tensors[info.name]))
            elif info.kind == _BUFFER and info.name in buffers:
                check_tensor(buffers[info.name], f"buffer '{info.name}'", "register it with persistent=False")
                mine = _rank_buffer(run, info.name)
                name, kind = mine if mine in own else (info.name, _BUFFER)
                buffer = buffers[info.name]
                copies.append((buffer, torch.empty_like(buffer, memory_format=torch.contiguous_format)))
                chosen.append(_whole(name, kind, copies[-1][1]))
        missing = buffers.keys() - {info.name for info in infos if info.kind == _BUFFER}
        if missing and load_module_strict:
            raise ValueError(
                f"buffers that the checkpoint does not have: {', '.join(sorted(missing)[:5])}. To load what it has, "
                "pass load_module_strict=False"
            )
        if with_optimizer and run.external is not None:
            chosen += _external_wants(run, infos, states)
        if load_lr_scheduler_states and not load_module_only:
            _check_scheduler(run, decode(saved.get("lr_scheduler"), tensors))
        return chosen

    def accept(text: str) -> None:
        saved.clear()
        saved.update(json.loads(text))
        if rank_state is not None:
            _check_rank_state(run, saved)
        if with_optimizer:
            _check_param_groups(run, saved)

    client: dict[str, Any] | None = None

    def finish(loaded: _C.LoadedState) -> None:
        nonlocal client
        for buffer, values in copies:
            _C.set_buffer(buffer, values)
        state = decode(saved, tensors)
        client = state["client"]
        if rank_state is not None:
            rank_state.clear()
            rank_state.update(decode(json.loads(loaded.rank_states[run.rank])[_CLIENT], own_tensors))
        elif saved.get(_RANK_STATE) is not None and run.rank == 0:
            log("the checkpoint has a rank_state, which is not loaded: pass load_checkpoint a dict as rank_state")
        if load_module_only:
            return
        if with_optimizer:
            _restore_optimizer(run, state, states, [json.loads(text) for text in loaded.rank_states])
        if load_lr_scheduler_states:
            _restore(run.lr_scheduler, state.get("lr_scheduler"))
        _restore(run.loader, state.get("data"))
        run.position.end_step()
        counts = [(name, int(state[name])) for name, _ in run.progress.counts() if name in state]
        run.core.restore_progress(counts, step=loaded.step)
        _restore_random(run, loaded.rank_states)

    takes = ["buffers"] * bool(buffers)
    if not load_module_only:
        takes += ["optimizer settings"] * with_optimizer + ["lr_scheduler"] * load_lr_scheduler_states
        takes += ["counts, random numbers and position in the data"]
    try:
        with naming_causes() as keeping:
            loaded = run.core.load_checkpoint(
                os.fsencode(load_dir),
                tag=None if tag is None else os.fsencode(str(tag)),
                strict=strict,
                all_params=load_module_strict,
                optimizer=with_optimizer,
                others=keeping(others),
                accept=keeping(accept),
                finish=keeping(finish),
                takes=takes,
            )
    finally:
        note_half_load(run)
    if loaded is None:
        return None, None
    return os.path.join(os.fsdecode(load_dir), loaded.tag), client


def _check_rank_state(run: Run, saved: dict[str, Any]) -> None:
    ranks = saved.get(_RANK_STATE)
    if ranks is None:
        raise ValueError("the checkpoint has no rank_state: load it without rank_state")
    if ranks != run.world_size:
        raise ValueError(
            f"the checkpoint has the rank_state of {ranks} ranks, and there are {run.world_size}: only the same number "
            "of ranks can load it. Load without rank_state, and make it anew"
        )


def _check_scheduler(run: Run, state: Any) -> None:
    """Raises ``ValueError`` if the scheduler cannot load ``state``, before the load has changed anything.

    For this the scheduler loads ``state``, and then its old state again.
    """
    scheduler = run.lr_scheduler
    if state is None or not (hasattr(scheduler, "load_state_dict") and hasattr(scheduler, "state_dict")):
        return
    own = copy.deepcopy(scheduler.state_dict())
    settings = [_without_params(group) for group in run.optimizer.param_groups]
    try:
        scheduler.load_state_dict(state)
    except Exception as error:  # the caller's scheduler can raise anything
        raise ValueError(
            f"the lr_scheduler {type(scheduler).__name__} cannot load the checkpoint's state "
            f"({type(error).__name__}: {error}): pass one like it, or load with load_lr_scheduler_states=False"
        ) from error
    finally:
        scheduler.load_state_dict(own)
        for group, before in zip(run.optimizer.param_groups, settings, strict=True):
            group.update(before)


def _restore(thing: Any, state: Any) -> None:
    if state is not None and hasattr(thing, "load_state_dict"):
        thing.load_state_dict(state)


def _dtype(info: _C.TensorInfo) -> torch.dtype:
    if info.dtype not in DTYPES:
        raise ValueError(f"'{info.name}' ({info.kind}) has the dtype {info.dtype}, which this version cannot load")
    return DTYPES[info.dtype]


def _external_wants(
    run: Run, infos: list[_C.TensorInfo], states: list[tuple[torch.Tensor, str, torch.Tensor]]
) -> list[_C.TensorState]:
    kinds: dict[str, list[_C.TensorInfo]] = {}
    for info in infos:
        if info.kind.startswith(_OPTIMIZER):
            kinds.setdefault(info.name, []).append(info)
    chosen = []
    of_stretches = _stretches_of(infos)
    for part, param in run.external_params():
        for info in kinds.get(part.param, []):
            tensor = torch.empty(param.shape, dtype=_dtype(info), device=param.device)
            states.append((param, info.kind.removeprefix(_OPTIMIZER), tensor))
            chosen.append(_C.TensorState(part.param, info.kind, tensor, part.shape, part.begin))
        saved = of_stretches.get(part.param)
        if saved is None or param.numel() == 0:
            continue
        stretch = _stretch_of(part, param)
        if stretch not in saved:
            some = next(iter(saved.values()))
            raise ValueError(
                f"the checkpoint has states of an optimizer with code tables ({', '.join(sorted(some))}) "
                f"for other stretches of '{part.param}' than this run's {stretch}, and they cannot be cut anew: load "
                "it with as many ranks and the stage that saved it, or with load_optimizer_states=False"
            )
        for kind, info in saved[stretch].items():
            tensor = torch.empty(info.shape, dtype=_dtype(info), device=param.device)
            states.append((param, kind, tensor))
            chosen.append(_whole(stretch, info.kind, tensor))
    return chosen


def _stretches_of(infos: list[_C.TensorInfo]) -> dict[str, dict[str, dict[str, _C.TensorInfo]]]:
    """Returns the states that were saved whole, by parameter, slice and kind.

    If several ranks saved the same slice, returns the states of one of them.
    """
    found: dict[str, dict[str, dict[str, _C.TensorInfo]]] = {}
    for info in infos:
        if info.kind.startswith(_OF_STRETCH):
            kind = info.kind[len(_OF_STRETCH) : info.kind.rindex("@")]
            param = info.name[: info.name.rindex("[")]
            found.setdefault(param, {}).setdefault(info.name, {})[kind] = info
    return found


def _check_param_groups(run: Run, state: dict[str, Any]) -> None:
    groups = len(run.optimizer.param_groups)
    if "param_groups" in state and len(state["param_groups"]) != groups:
        raise ValueError(
            f"the optimizer has {groups} param groups, the checkpoint {len(state['param_groups'])}: "
            "load with load_optimizer_states=False to keep this optimizer's settings"
        )
    for number, group in enumerate(state.get("param_groups", ())):
        own, saved = (each.get("use_muon", False) for each in (run.optimizer.param_groups[number], group))
        if own != saved:
            raise ValueError(
                f"param group {number} has use_muon {own}, in the checkpoint {saved}: give the optimizer its groups in "
                "the order in which they were saved, or load with load_optimizer_states=False"
            )


def _restore_optimizer(
    run: Run,
    state: dict[str, Any],
    states: list[tuple[torch.Tensor, str, torch.Tensor]],
    rank_states: list[dict[str, Any]],
) -> None:
    if "param_groups" not in state:  # as a C++ program saves, and an import that has found none
        return
    take_settings(run.optimizer.param_groups, state["param_groups"])
    if run.external is None:
        return
    scalars: dict[str, dict[str, Any]] = {}
    for rank_state in rank_states:
        own = decode(rank_state.get("optimizer", {}), {})
        scalars |= {plain_name(name): values for name, values in own.items()} | own
    for param, kind, tensor in states:
        run.external.state[param][kind] = tensor
    for part, param in run.external_params():
        run.external.state[param].update(_own_copies(scalars.get(part.param, {})))


def _own_copies(values: dict[str, Any]) -> dict[str, Any]:
    """Returns ``values`` with copies of the tensors, because optimizers update each parameter's scalars in place."""
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in values.items()}


def _restore_random(run: Run, rank_states: list[str]) -> None:
    """Restores this rank's random state. A rank that the saving run did not have gets a new state."""
    saved = json.loads(rank_states[run.rank % len(rank_states)]).get("random")
    if saved is not None:  # an imported checkpoint has no random state, so the run keeps its own
        restore_other_random_state(saved, run.device)
    seed = _C.restore_random_state(rank_states, run.rank)
    if seed is not None:
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
