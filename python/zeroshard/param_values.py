"""Reads and sets master weights, gradients and optimizer states of single parameters.

These functions must be called between passes. For a parameter that no engine trains (a frozen parameter, or a parameter
of a module whose engine has ended), setters change nothing and getters return None. Gradients are averaged over ranks
and micro-batches, without the loss scale and before clipping. They exist from ``backward`` until the next forward pass
for training begins, so they still exist after ``step``. If ``param.grad`` is a tensor of the caller's, ``get_gradient``
and ``set_gradient`` without ``local`` read and write that tensor. They do so even for a parameter that no engine
trains.

Getters return fp32 tensors in the parameter's shape. Setters take the same whole tensor on every rank, and each rank
keeps its share. Every rank must call these functions with the same parameter. With ``local=True`` a getter returns, and
a setter takes, a 1-D tensor of the elements that this rank updates. That tensor can be empty. At stage 0 it has all
elements.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from . import _C
from .marks import mark_of, run_of
from .messages import a_type
from .run import Run


def get_master_weight(param: torch.Tensor, *, local: bool = False) -> torch.Tensor | None:
    """Returns the parameter's fp32 (master) weights. Collective, unless ``local``.

    >>> zeroshard.get_master_weight(model.lm_head.weight).norm()
    """
    return read_state(param, None, local, "get_master_weight")


def set_master_weight(param: torch.Tensor, value: torch.Tensor, *, local: bool = False) -> None:
    """Sets the parameter and its master weights. Raises ``ValueError`` for a wrong number of elements.

    If every rank keeps the parameter whole, the other ranks see the values of a ``local`` call after the next step. If
    the parameter is sharded, they see these values at its next gather. With ``zeroshard.mesh.outer`` "optimizer", each
    of several groups of ranks has all parameters, and the other groups see the values after the next step.

    >>> zeroshard.set_master_weight(model.lm_head.weight, torch.zeros(100, 32))
    """
    write_state(param, None, value, local, "set_master_weight")


def get_optimizer_state(param: torch.Tensor, key: str, *, local: bool = False) -> torch.Tensor | None:
    """Returns a state of the optimizer, such as ``exp_avg``. Collective, unless ``local``.

    Returns None before the first step of an optimizer that makes its states itself. Raises ``ValueError`` for an
    unknown key.

    >>> zeroshard.get_optimizer_state(model.lm_head.weight, "exp_avg_sq").max()
    """
    return read_state(param, key, local, "get_optimizer_state")


def set_optimizer_state(param: torch.Tensor, key: str, value: torch.Tensor, *, local: bool = False) -> None:
    """Sets a state of the optimizer. Raises ``ValueError`` for an unknown key or a wrong number of elements.

    >>> zeroshard.set_optimizer_state(model.lm_head.weight, "exp_avg", torch.zeros(100, 32))
    """
    write_state(param, key, value, local, "set_optimizer_state")


def get_gradient(param: torch.Tensor, *, local: bool = False) -> torch.Tensor | None:
    """Returns the parameter's gradient, or None if no rank has one. Collective, unless ``local``.

    Before the step, a ``local`` call returns zeros for a parameter without a gradient.

    >>> engine.backward(engine(**batch).loss)
    >>> zeroshard.get_gradient(model.lm_head.weight).norm()
    """
    return read_gradient(param, local, "get_gradient")


def get_gradient_norms(model: nn.Module) -> dict[str, float]:
    """Returns the 2-norm of each parameter's whole gradient by name, for parameters that have a gradient. Collective.

    The gradients are those of ``get_gradient``, but no rank gathers a whole gradient. A single sum over ranks gives all
    norms. ``model`` is the engine, the model that was given to ``initialize``, or a part of that model. Raises
    ``ValueError`` if no engine trains it.

    >>> engine.backward(engine(**batch).loss)
    >>> for name, norm in zeroshard.get_gradient_norms(model).items():
    ...     print(f"{name} {norm:.3f}")
    """
    if isinstance(run := getattr(model, "_run", None), Run):
        model = run.module
    params = [(name, mark_of(param)) for name, param in model.named_parameters()]
    runs = {id(run): run for _, mark in params if (run := run_of(mark)) is not None}
    if not runs:
        raise _C.ValueError("get_gradient_norms: no engine trains a parameter of this model: call initialize first")
    norms = {key: dict(run.core.grad_norms()) for key, run in runs.items()}
    found = {}
    for name, mark in params:
        if (run := run_of(mark)) is not None:
            own = run.units[mark.unit].params[mark.position].names[0]
            if (norm := norms[id(run)].get(own)) is not None:
                found[name] = norm
    return found


def set_gradient(param: torch.Tensor, value: torch.Tensor, *, local: bool = False) -> None:
    """Sets the gradient that the next step uses. Must be called after ``backward``.

    Raises ``StateError`` if there is no gradient to replace, and ``ValueError`` for a wrong number of elements.

    >>> engine.backward(engine(**batch).loss)
    >>> param = model.lm_head.weight
    >>> zeroshard.set_gradient(param, zeroshard.get_gradient(param).clamp(-1, 1))
    """
    write_gradient(param, value, local, "set_gradient")


# -- the same functions with a caller's name ``who`` for messages ------------------------------------------------------


def read_state(param: torch.Tensor, key: str | None, local: bool, who: str) -> torch.Tensor | None:
    """Returns the master weights if ``key`` is None, else a state. Returns None if no engine trains ``param``."""
    place = place_of(param, who)
    own = _slice(place) if place is not None else None
    if own is None:
        return None
    return _local(place, own, key) if local else _full(place, own, key)


_SUMS_OF_SQUARES = ("exp_avg_sq", "sum")  # states of the core that are never negative


def write_state(param: torch.Tensor, key: str | None, value: torch.Tensor, local: bool, who: str) -> None:
    """Sets the master weights if ``key`` is None, else a state of the optimizer, unless no engine trains ``param``."""
    place = place_of(param, who)
    own = _slice(place) if place is not None else None
    if own is None:
        return
    if local:
        value = _checked(value, own.master.numel(), who, own.param if key else f"{own.param}' of this rank's")
    else:
        value = _checked(value, param.numel(), who, own.param)
    if key is None:
        place.run.core.set_weights(place.unit, place.position, own.begin if local else 0, value)
        return
    if key in _SUMS_OF_SQUARES and place.run.external is None and bool((value < 0).any()):
        raise ValueError(
            f"{who}: the state '{key}' of '{own.param}' sums squares, and the least of its values is "
            f"{value.min().item():g}: set values of at least 0"
        )
    stretch = value.reshape(-1)
    if not local:
        stretch = stretch[own.begin : own.begin + own.master.numel()]
    _set(place, own, key, stretch, who)


def read_gradient(param: torch.Tensor, local: bool, who: str) -> torch.Tensor | None:
    place = place_of(param, who)
    if local:
        return place.run.core.local_grad(place.unit, place.position) if place is not None else None
    if place is None or _is_assigned(param.grad):
        return param.grad
    return place.run.core.full_grad(place.unit, place.position)


def _is_assigned(grad: torch.Tensor | None) -> bool:
    """Returns whether ``grad`` is a gradient that the caller has assigned, and not the engine's stand-in."""
    return grad is not None and not _C.is_stand_in(grad)


def write_gradient(param: torch.Tensor, value: torch.Tensor, local: bool, who: str) -> None:
    place = place_of(param, who)
    if not local and _is_assigned(param.grad):
        param.grad.copy_(_checked(value, param.numel(), who, "param.grad").view_as(param.grad))
        return
    own = _slice(place) if place is not None else None
    if own is None:
        return
    if local:
        value = _checked(value, own.master.numel(), who, own.param)
        place.run.core.set_grad(place.unit, place.position, own.begin, value)
    else:
        place.run.core.set_grad(place.unit, place.position, 0, _checked(value, param.numel(), who, own.param))


# -- from a parameter to its engine ------------------------------------------------------------------------------------


class Place(NamedTuple):
    """The run of the engine that has a parameter, the index of the parameter's unit, and its position in the unit."""

    run: Run
    unit: int
    position: int


def place_of(param: torch.Tensor, who: str) -> Place | None:
    if not isinstance(param, torch.Tensor):
        raise ValueError(f"{who}: param is {a_type(param)}, expected a parameter of the model")
    mark = mark_of(param)
    run = run_of(mark)
    return Place(run, mark.unit, mark.position) if run is not None else None


def _slice(place: Place) -> _C.OptimizerSlice | None:
    return place.run.core.slice(place.unit, place.position)


def _checked(value: torch.Tensor, numel: int, who: str, name: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{who}: value is {a_type(value)}, expected a tensor")
    if value.numel() != numel:
        raise ValueError(f"{who}: value has {value.numel()} elements, '{name}' has {numel}")
    return value.detach()


def _core_state(place: Place, own: _C.OptimizerSlice, key: str) -> torch.Tensor | None:
    """Returns this rank's slice of a state that the core keeps, or None if the slice has no elements.

    Raises ``ValueError`` if the core's optimizer has no such state.
    """
    names = place.run.optimizer.state_names(own)
    if key not in names:
        raise ValueError(f"'{own.param}' has no optimizer state '{key}': {place.run.optimizer.name} has {list(names)}")
    index = names.index(key)
    return own.moments[index] if index < len(own.moments) else None


def _outside_states(place: Place, own: _C.OptimizerSlice) -> dict[str, Any]:
    """Returns the states that the user's own optimizer has for this rank's slice. Before its first step it has none."""
    for part, param in place.run.external_params():
        if part.param == own.param:
            return place.run.external.state.get(param, {})
    return {}


def _state(place: Place, own: _C.OptimizerSlice, key: str) -> torch.Tensor | None:
    """Returns a state of this rank's slice, or None if the slice has none. Collective if the optimizer is external.

    Raises ``ValueError`` if ``key`` is no state with one value for each element. If the optimizer is external, every
    rank raises it as soon as this is so on any rank.
    """
    if place.run.external is None:
        return _core_state(place, own, key)
    states = _outside_states(place, own)

    def check() -> None:
        value = states.get(key)
        if states and (not isinstance(value, torch.Tensor) or value.numel() != own.master.numel()):
            elementwise = [name for name, each in states.items() if isinstance(each, torch.Tensor) and each.dim() > 0]
            what = "has one value" if key in states else "is missing"
            raise ValueError(
                f"the optimizer state '{key}' of '{own.param}' {what}: {place.run.optimizer.name} has {elementwise} "
                "with a value for each element"
            )

    place.run.core.together(check, "get_optimizer_state or set_optimizer_state")
    return states.get(key)


def _full(place: Place, own: _C.OptimizerSlice, key: str | None) -> torch.Tensor | None:
    mine = own.master if key is None else _state(place, own, key)
    return place.run.core.full_state(place.unit, place.position, mine, key or "fp32 weights")


def _local(place: Place, own: _C.OptimizerSlice, key: str | None) -> torch.Tensor | None:
    if key is None:
        return own.master.to(place.run.device, copy=True)
    if place.run.external is None:
        state = _core_state(place, own, key)
        nothing = None if own.master.numel() else own.master
    else:
        state, nothing = _outside_states(place, own).get(key), None
    return state.detach().to(place.run.device, torch.float32, copy=True) if isinstance(state, torch.Tensor) else nothing


def _set(place: Place, own: _C.OptimizerSlice, key: str, stretch: torch.Tensor, who: str) -> None:
    if own.master.numel() == 0:
        if place.run.external is None:
            _core_state(place, own, key)  # raises for an unknown key on this rank, too
        return
    if place.run.external is None and _core_state(place, own, key) is not None:
        place.run.core.set_moment(own.param, place.run.optimizer.state_names(own).index(key), stretch)
        return
    state = _outside_states(place, own).get(key)
    if not isinstance(state, torch.Tensor) or state.numel() != own.master.numel():
        raise ValueError(
            f"{who}: the optimizer keeps no state '{key}' with a value for each element of '{own.param}' now; an "
            "optimizer of the caller's makes its states in its first step"
        )
    with torch.no_grad():
        state.copy_(stretch.reshape(-1))
