"""Takes over states that a user's optimizer already has when an engine is made, for example because they were loaded.

The states belong to whole parameters. All ranks take rank 0's values, as they do for parameters, and each rank keeps
its slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import _C
from .optimizer import OptimizerSetup, state_names
from .run import Run
from .units import Param, Unit


def describe_states(setup: OptimizerSetup, units: Sequence[Unit]) -> list[tuple[str, str]]:
    """Returns for each parameter with states its name, and the names and types of the states.

    These must be the same on every rank, because ``take_states`` broadcasts the states one after another.
    Raises ``ValueError`` for a state that cannot be sharded, because it is not a number and does not have one value per
    element.
    """
    names = {id(tensor): param.names[0] for unit in units for param in unit.params for tensor in param.tensors}
    found = []
    for param, state in setup.states:
        name = names.get(id(param), "a parameter")
        plain = setup.plain(state, only_shapes=True)
        for kind, value in plain.items():
            if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape != param.shape:
                raise ValueError(
                    f"the optimizer has a state '{kind}' of the shape {list(value.shape)} for '{name}', whose shape is "
                    f"{list(param.shape)}: only states with one value per element, and numbers, can be sharded. Pass "
                    "an optimizer that has none yet, or a callable that makes it"
                )
        kinds = sorted(f"{kind} ({_type_of(value)})" for kind, value in plain.items() if value is not None)
        found.append((name, ", ".join(kinds)))
    return found


def _type_of(value: Any) -> str:
    return str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__


def _share(run: Run, state: dict[str, Any]) -> None:
    """Replaces the tensors and numbers in ``state`` by rank 0's values. Leaves other values. Collective."""
    for kind in sorted(kind for kind, value in state.items() if value is not None):
        value = state[kind]
        if isinstance(value, torch.Tensor):
            shared = value.detach().to(run.device, copy=True).contiguous()
            dist.broadcast(shared, src=0)
            state[kind] = shared.to(value.device)
        elif isinstance(value, bool | int | float):
            number = torch.tensor(float(value), dtype=torch.float64, device=run.device)
            dist.broadcast(number, src=0)
            state[kind] = type(value)(number.item())


def take_states(run: Run, setup: OptimizerSetup) -> None:
    """Replaces the states of whole parameters in the user's optimizer by slices of rank 0's states. Collective.

    The core gets this rank's slices or, if the optimizer is external, the optimizer itself gets them.
    """
    states = {id(param): state for param, state in setup.states}
    if not states:
        return

    def state_of(param: Param) -> dict[str, Any]:
        return next((states[id(tensor)] for tensor in param.tensors if id(tensor) in states), {})

    if run.external is not None:
        if run.world_size > 1:
            for state in states.values():
                _share(run, state)
        params = {param.names[0]: param for unit in run.units for param in unit.params}
        own = {param: _stretch(state_of(params[part.param]), part) for part, param in run.external_params()}
        setup.inner.state.clear()
        setup.inner.state.update({param: state for param, state in own.items() if state})
        return
    # Takes one parameter at a time, because slices and decoded states can be copies, which need memory.
    for unit, each in enumerate(run.units):
        for position, param in enumerate(each.params):
            if state := state_of(param):
                _take_state(run, setup, param, run.core.slice(unit, position), setup.plain(state))
    setup.inner.state.clear()


def _take_state(
    run: Run, setup: OptimizerSetup, param: Param, part: _C.OptimizerSlice | None, state: dict[str, Any]
) -> None:
    """Gives the core this rank's part of the states of one parameter, and the number of its updates. Collective."""
    if run.world_size > 1:
        _share(run, state)
    if part is not None and part.master.numel() > 0:
        stretch = _stretch(state, part)
        kinds = state_names(setup.type, setup.param_groups[part.param_group])
        for slot, kind in enumerate(kinds[: len(part.moments)]):
            if stretch.get(kind) is not None:
                run.core.set_moment(part.param, slot, stretch[kind])
    if any(id(tensor) in setup.group_of and tensor.requires_grad for tensor in param.tensors):
        run.core.set_updates(param.names[0], _updates(state))


def _stretch(state: dict[str, Any], part: _C.OptimizerSlice) -> dict[str, Any]:
    """Returns the part of a parameter's states that belongs to a slice of the parameter."""
    own = {}
    for kind, value in state.items():
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            whole = value.detach().reshape(-1)
            end = part.begin + part.master.numel()
            own[kind] = whole[part.begin : end].to(part.master.device, torch.float32, copy=True)
        elif isinstance(value, torch.Tensor):
            # Each slice gets a scalar tensor of its own, because optimizers update it in place. If the parameter itself
            # has no dimensions, a state without dimensions can also be an elementwise one. Such a state becomes a
            # vector of one element, like the slice.
            own[kind] = value.clone() if list(part.shape) != [] or kind == "step" else value.reshape(1).clone()
        else:
            own[kind] = value
    return own


def _updates(state: dict[str, Any]) -> int:
    """Returns the number of updates that made the states.

    SGD does not count updates. For SGD this returns 1 if there is a momentum, because an update has made it, else 0.
    """
    if "step" in state:
        return int(state["step"])
    return 1 if state.get("momentum_buffer") is not None else 0
