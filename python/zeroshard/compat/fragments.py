"""Reading and setting of weights, gradients and optimizer states of single parameters, by DeepSpeed's names.

Call them between passes. None of them changes anything for a parameter that no engine trains (a frozen one, or of a
module whose engine has ended); getters return None there. Gradients are averaged over ranks and micro-batches, without
the loss scale and before clipping. They are there from ``backward`` on, after the ``step`` as well, until the next
forward pass for training.

"Full" getters return fp32 tensors in the parameter's shape. Every rank calls them with the same parameter. "Full"
setters take the same whole tensor on every rank, of which each keeps its share. "Local" ones are about the elements
that this rank updates, one after another; there may be none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from .. import _C
from ..marks import mark_of
from ..run import Run


class _Place(NamedTuple):
    """Where a parameter is in its engine."""

    run: Run
    unit: int
    position: int


def _place_of(param: torch.Tensor, who: str) -> _Place | None:
    if not isinstance(param, torch.Tensor):
        raise ValueError(f"{who}: param is a {type(param).__name__}, expected a parameter of the model")
    mark = mark_of(param)
    owner = mark.owner() if mark is not None else None
    run = owner.run if owner is not None else None
    return _Place(run, mark.unit, mark.position) if run is not None and not run.has_ended else None


def _local_place(param: torch.Tensor, who: str) -> _Place | None:
    place = _place_of(param, who)
    if place is not None and place.run.config.stage == 0:
        raise ValueError(
            f"{who}: at stage 0 every rank updates all elements: {who.replace('_local_', '_full_')} has them"
        )
    return place


def _slice(place: _Place) -> _C.OptimizerSlice | None:
    return place.run.core.slice(place.unit, place.position)


def _checked(value: torch.Tensor, numel: int, who: str, name: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{who}: value is a {type(value).__name__}, expected a tensor")
    if value.numel() != numel:
        raise ValueError(f"{who}: value has {value.numel()} elements, '{name}' has {numel}")
    return value.detach()


# -- states ----------------------------------------------------------------------------------------------------------


def _core_state(place: _Place, own: _C.OptimizerSlice, key: str) -> torch.Tensor | None:
    """This rank's stretch of a state that the core keeps; None where it keeps none."""
    names = place.run.optimizer.state_names
    if key not in names:
        raise ValueError(f"'{own.param}' has no optimizer state '{key}': {place.run.optimizer.name} has {list(names)}")
    index = names.index(key)
    return own.moments[index] if index < len(own.moments) else None


def _outside_states(place: _Place, own: _C.OptimizerSlice) -> dict[str, Any]:
    """The states that the caller's own optimizer has for this rank's stretch; none before its first step."""
    for part, param in place.run.external_params():
        if part.param == own.param:
            return place.run.external.state.get(param, {})
    return {}


def _state(place: _Place, own: _C.OptimizerSlice, key: str) -> torch.Tensor | None:
    """Raises ``ValueError`` on every rank for a key that is unknown on some. Collective with an optimizer outside."""
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

    place.run.core.together(check)
    return states.get(key)


def _full(param: torch.Tensor, key: str | None, who: str) -> torch.Tensor | None:
    place = _place_of(param, who)
    own = _slice(place) if place is not None else None
    if own is None:
        return None
    mine = own.master if key is None else _state(place, own, key)
    return place.run.core.full_state(place.unit, place.position, mine, key or "fp32 weights")


def _local(param: torch.Tensor, key: str | None, who: str) -> torch.Tensor | None:
    place = _local_place(param, who)
    own = _slice(place) if place is not None else None
    if own is None:
        return None
    if key is None:
        return own.master.clone()
    if place.run.external is None:
        state = _core_state(place, own, key)
        nothing = None if own.master.numel() else own.master
    else:
        state, nothing = _outside_states(place, own).get(key), None
    return state.detach().to(torch.float32, copy=True) if isinstance(state, torch.Tensor) else nothing


def _set(place: _Place, own: _C.OptimizerSlice, key: str, stretch: torch.Tensor, who: str) -> None:
    if own.master.numel() == 0:
        if place.run.external is None:
            _core_state(place, own, key)  # an unknown key is an error on this rank, too
        return
    state = _core_state(place, own, key) if place.run.external is None else _outside_states(place, own).get(key)
    if not isinstance(state, torch.Tensor) or state.numel() != own.master.numel():
        raise ValueError(
            f"{who}: the optimizer keeps no state '{key}' with a value for each element of '{own.param}' now; an "
            "optimizer of the caller's makes its states in its first step"
        )
    with torch.no_grad():
        state.copy_(stretch.reshape(-1))


def safe_get_full_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """The parameter's fp32 (master) weights. Collective."""
    return _full(param, None, "safe_get_full_fp32_param")


def safe_get_full_optimizer_state(param: torch.nn.Parameter, optim_state_key: str | None) -> torch.Tensor | None:
    """A state of the optimizer, such as ``exp_avg``. Collective.

    None before the first step of an optimizer that makes its states itself. Raises ``ValueError`` for an unknown key.
    """
    return _full(param, optim_state_key, "safe_get_full_optimizer_state")


def safe_get_local_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """This rank's fp32 weights of the parameter."""
    return _local(param, None, "safe_get_local_fp32_param")


def safe_get_local_optimizer_state(param: torch.nn.Parameter, optim_state_key: str | None) -> torch.Tensor | None:
    """This rank's values of a state of the optimizer."""
    return _local(param, optim_state_key, "safe_get_local_optimizer_state")


def safe_set_full_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets the parameter and its master weights. Every rank calls it, with the same values."""
    who = "safe_set_full_fp32_param"
    place = _place_of(param, who)
    if place is not None and (own := _slice(place)) is not None:
        value = _checked(value, param.numel(), who, own.param)
        place.run.core.set_weights(place.unit, place.position, 0, value)


def safe_set_full_optimizer_state(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str | None) -> None:
    """Sets a state of the optimizer. Every rank calls it, with the same values."""
    who = "safe_set_full_optimizer_state"
    if optim_state_key is None:
        return safe_set_full_fp32_param(param, value)
    place = _place_of(param, who)
    if place is not None and (own := _slice(place)) is not None:
        whole = _checked(value, param.numel(), who, own.param).reshape(-1)
        _set(place, own, optim_state_key, whole[own.begin : own.begin + own.master.numel()], who)
    return None


def safe_set_local_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets this rank's elements of the parameter and of its master weights.

    Other ranks see it when they gather the parameter next: where they hold it whole, after the next step.
    """
    who = "safe_set_local_fp32_param"
    place = _local_place(param, who)
    if place is not None and (own := _slice(place)) is not None:
        value = _checked(value, own.master.numel(), who, f"{own.param}' of this rank's")
        place.run.core.set_weights(place.unit, place.position, own.begin, value)


def safe_set_local_optimizer_state(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str | None) -> None:
    """Sets this rank's values of a state of the optimizer."""
    who = "safe_set_local_optimizer_state"
    if optim_state_key is None:
        return safe_set_local_fp32_param(param, value)
    place = _local_place(param, who)
    if place is not None and (own := _slice(place)) is not None:
        _set(place, own, optim_state_key, _checked(value, own.master.numel(), who, own.param), who)
    return None


# -- gradients -------------------------------------------------------------------------------------------------------


def safe_get_full_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """The gradient. None if no rank has one. Collective."""
    place = _place_of(param, "safe_get_full_grad")
    if place is None or param.grad is not None:
        return param.grad
    return place.run.core.full_grad(place.unit, place.position)


def safe_get_local_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """This rank's elements of the gradient; before the step, zeros where no rank has one."""
    place = _local_place(param, "safe_get_local_grad")
    return place.run.core.local_grad(place.unit, place.position) if place is not None else None


def safe_set_full_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets the gradient that the next step uses. Every rank calls it after ``backward``, with the same values.

    Raises ``StateError`` where there is none to replace.
    """
    who = "safe_set_full_grad"
    place = _place_of(param, who)
    if param.grad is not None:
        param.grad.copy_(value)
    elif place is not None and (own := _slice(place)) is not None:
        place.run.core.set_grad(place.unit, place.position, 0, _checked(value, param.numel(), who, own.param))


def safe_set_local_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets this rank's elements of the gradient that the next step uses. Every rank calls it after ``backward``."""
    who = "safe_set_local_grad"
    place = _local_place(param, who)
    if place is not None and (own := _slice(place)) is not None:
        value = _checked(value, own.master.numel(), who, own.param)
        place.run.core.set_grad(place.unit, place.position, own.begin, value)


def safe_update_full_grad_vectorized(
    param_list: Iterable[torch.nn.Parameter],
    update_func: Callable[[torch.Tensor, torch.nn.Parameter], torch.Tensor],
) -> None:
    """Sets each gradient to ``update_func(gradient, param)``. Every rank calls it with the same parameters."""
    for param in param_list:
        if param.requires_grad and (grad := safe_get_full_grad(param)) is not None:
            safe_set_full_grad(param, update_func(grad, param))
