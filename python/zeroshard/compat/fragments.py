"""Reads and sets weights, gradients and optimizer states of single parameters, with DeepSpeed's names.

See ``zeroshard.param_values``. "Full" functions return or take whole tensors, and every rank must call them. "Local"
functions return or take the elements that this rank updates, and raise ``ValueError`` at stage 0. Where a function
takes the key of a state of the optimizer, the key None means the master weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ..param_values import place_of, read_gradient, read_state, write_gradient, write_state


def safe_get_full_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """Returns the parameter's fp32 (master) weights. Collective."""
    return read_state(param, None, False, "safe_get_full_fp32_param")


def safe_get_full_optimizer_state(param: torch.nn.Parameter, optim_state_key: str | None) -> torch.Tensor | None:
    """Returns a state of the optimizer, such as ``exp_avg``. Collective."""
    return read_state(param, optim_state_key, False, "safe_get_full_optimizer_state")


def safe_get_full_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """Returns the parameter's gradient, or None if no rank has one. Collective."""
    return read_gradient(param, False, "safe_get_full_grad")


def safe_get_local_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """Returns this rank's fp32 weights of the parameter."""
    _check_stage(param, "safe_get_local_fp32_param")
    return read_state(param, None, True, "safe_get_local_fp32_param")


def safe_get_local_optimizer_state(param: torch.nn.Parameter, optim_state_key: str | None) -> torch.Tensor | None:
    """Returns this rank's values of a state of the optimizer."""
    _check_stage(param, "safe_get_local_optimizer_state")
    return read_state(param, optim_state_key, True, "safe_get_local_optimizer_state")


def safe_get_local_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """Returns this rank's elements of the gradient. Before the step, these are zeros if no rank has a gradient."""
    _check_stage(param, "safe_get_local_grad")
    return read_gradient(param, True, "safe_get_local_grad")


def safe_set_full_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets the parameter and its master weights. Every rank must call it with the same values."""
    write_state(param, None, value, False, "safe_set_full_fp32_param")


def safe_set_full_optimizer_state(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str | None) -> None:
    """Sets a state of the optimizer. Every rank must call it with the same values."""
    write_state(param, optim_state_key, value, False, "safe_set_full_optimizer_state")


def safe_set_full_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets the gradient that the next step uses. Every rank must call it after ``backward``, with the same values."""
    write_gradient(param, value, False, "safe_set_full_grad")


def safe_set_local_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets this rank's elements of the parameter and of its master weights."""
    _check_stage(param, "safe_set_local_fp32_param")
    write_state(param, None, value, True, "safe_set_local_fp32_param")


def safe_set_local_optimizer_state(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str | None) -> None:
    """Sets this rank's values of a state of the optimizer."""
    _check_stage(param, "safe_set_local_optimizer_state")
    write_state(param, optim_state_key, value, True, "safe_set_local_optimizer_state")


def safe_set_local_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets this rank's elements of the gradient that the next step uses. Every rank must call it after ``backward``."""
    _check_stage(param, "safe_set_local_grad")
    write_gradient(param, value, True, "safe_set_local_grad")


def safe_update_full_grad_vectorized(
    param_list: Iterable[torch.nn.Parameter],
    update_func: Callable[[torch.Tensor, torch.nn.Parameter], torch.Tensor],
) -> None:
    """Sets each gradient to ``update_func(gradient, param)``. Every rank must call it with the same parameters.

    Skips frozen parameters and parameters without a gradient.
    """
    for param in param_list:
        if param.requires_grad and (grad := safe_get_full_grad(param)) is not None:
            safe_set_full_grad(param, update_func(grad, param))


def _check_stage(param: torch.nn.Parameter, who: str) -> None:
    place = place_of(param, who)
    if place is not None and place.run.config.stage == 0:
        raise ValueError(
            f"{who}: at stage 0 every rank updates all elements: {who.replace('_local_', '_full_')} has them"
        )
