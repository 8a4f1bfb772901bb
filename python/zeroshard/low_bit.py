"""Reads the settings of optimizers of bitsandbytes and torchao, in whose place the core updates.

The core stores moments in 8 bits where these optimizers do, except those of parameters with fewer than 4,096 elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _C

_BLOCK = 256  # elements that share a scale, in the core and by default in both packages
_LEAST_CODED = 4096  # smaller parameters keep fp32 moments in the core

_PREFIXES, _SUFFIXES = ("", "Paged"), ("", "8bit", "32bit")
# The core's types for the optimizers of bitsandbytes. The Adam of bitsandbytes decays weights in the same way as AdamW.
_BITSANDBYTES = {
    f"{prefix}{name}{suffix}": kind
    for name, kind in (
        ("Adam", _C.OptimizerType.ADAMW),
        ("AdamW", _C.OptimizerType.ADAMW),
        ("Lion", _C.OptimizerType.LION),
    )
    for prefix in _PREFIXES
    for suffix in _SUFFIXES
}
_TORCHAO = {"Adam8bit": _C.OptimizerType.ADAM, "AdamW8bit": _C.OptimizerType.ADAMW}


@dataclass
class LowBit:
    """The settings of a user's optimizer that decide how moments are stored."""

    name: str  # name of the optimizer
    moments: str = "fp32"  # the dtype of moments, as zeroshard.moment_dtype names it
    wide: set[int] = field(default_factory=set)  # id() of parameters that keep fp32 moments although others have 8 bits
    without_effect: list[str] = field(default_factory=list)


# Methods that the step() of these packages calls. A subclass that replaces one of them updates in another way.
_PARTS = ("update_step", "init_state", "get_config", "get_state_buffer", "_new_buffer", "_subclass_zeros")


def updates_as(optimizer: torch.optim.Optimizer, known: type) -> bool:
    """Returns whether the optimizer updates as the class ``known`` does: it has all ``_PARTS`` from that class."""
    return all(
        name not in vars(optimizer) and getattr(type(optimizer), name, None) is getattr(known, name, None)
        for name in _PARTS
    )


def kind_of(optimizer_type: type) -> _C.OptimizerType | None:
    """Returns the core's type for a class of one of the packages, or None if the core has no such type."""
    package = optimizer_type.__module__.partition(".")[0]
    known = {"bitsandbytes": _BITSANDBYTES, "torchao": _TORCHAO}.get(package, {})
    return known.get(optimizer_type.__name__)


def known_base(optimizer: torch.optim.Optimizer | None) -> type | None:
    """Returns the class of bitsandbytes or torchao from which the optimizer is derived, or None if there is none."""
    return next((base for base in type(optimizer).__mro__ if kind_of(base) is not None), None)


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a param group that the packages' optimizers read.

    A group can also have settings of another optimizer, if a checkpoint of that optimizer was loaded.
    """
    return {name: value for name, value in group.items() if name in ("lr", "betas", "eps", "weight_decay")}


def read_low_bit(optimizer: torch.optim.Optimizer, params: Iterable[torch.Tensor], config: _C.ParsedConfig) -> LowBit:
    """Returns how the moments of an optimizer are stored.

    If all states of the optimizer have 32 bits, ``zeroshard.moment_dtype`` decides how its moments are stored. Raises
    ``ValueError`` for a setting that the core does not have, and if the configuration sets another ``moment_dtype`` for
    an optimizer with 8-bit states.
    """
    known = known_base(optimizer)
    is_bitsandbytes = known.__module__.startswith("bitsandbytes")
    found = LowBit(f"{known.__name__} of {'bitsandbytes' if is_bitsandbytes else 'torchao'}")
    all_wide = (_read_bitsandbytes if is_bitsandbytes else _read_torchao)(found, optimizer, list(params))
    key = "zeroshard.moment_dtype"
    value, origin = next((value.strip('"'), origin) for path, value, origin in config.values if path == key)
    if all_wide:
        found.moments, found.wide = value, set()
    elif found.moments == "int8" and value != "int8" and origin != "default":
        raise ValueError(
            f'{key} = "{value}": {found.name} stores moments in 8 bits: set "int8" or leave the key out, or pass '
            "an optimizer of torch.optim"
        )
    return found


def _refuse(found: LowBit, setting: str, value: Any, advice: str) -> None:
    raise ValueError(f"{found.name}: {setting} = {value!r}: {advice}")


def _read_bitsandbytes(found: LowBit, optimizer: Any, params: list[torch.Tensor]) -> bool:
    """Reads the settings of bitsandbytes into ``found``. Returns whether all states have 32 bits."""
    args = optimizer.args
    if (percentile := getattr(args, "percentile_clipping", 100)) != 100:
        _refuse(found, "percentile_clipping", percentile, "set 100, and gradient_clipping in the configuration")
    if not getattr(args, "block_wise", True):
        _refuse(found, "block_wise", False, "each 256 elements have a scale of their own: set True")
    if getattr(args, "skip_zeros", False):
        _refuse(found, "skip_zeros", True, "an element with the gradient 0 is updated, too: set False")
    if (most := getattr(args, "max_unorm", 0.0)) > 0:
        _refuse(found, "max_unorm", most, "updates are not limited by norms of whole parameters: set 0")
    if getattr(optimizer, "is_paged", False):
        found.without_effect.append("is_paged (offload_optimizer moves states to the host or to files)")
    all_bits, least = set(), set()
    for param in params:
        bits, size = _bits(found, optimizer, param)
        all_bits.add(bits)
        least.add(size)
        if bits == 32 or param.numel() < size:
            found.wide.add(id(param))
        else:
            found.moments = "int8"
    if found.moments == "int8" and min(least) < _LEAST_CODED:
        found.without_effect.append(f"min_8bit_size = {min(least)} (parameters below {_LEAST_CODED:,} keep fp32)")
    return 8 not in all_bits


def _bits(found: LowBit, optimizer: Any, param: torch.Tensor) -> tuple[int, int]:
    """Returns the bits of a parameter's states, and the size from which on parameters have 8-bit states."""
    own = {"optim_bits": optimizer.args.optim_bits, "min_8bit_size": optimizer.args.min_8bit_size}
    manager = optimizer.mng
    overrides = dict(manager.pid2config.get(id(param), {}))
    for module, name, config in manager.module_weight_config_triple:
        if getattr(module, name, None) is param:
            overrides |= config
    for name, value in overrides.items():
        if name not in own:
            _refuse(found, f"GlobalOptimManager's {name}", value, "make a param group of its own for the parameter")
    own |= overrides
    if own["optim_bits"] not in (8, 32):
        _refuse(found, "optim_bits", own["optim_bits"], "states have 8 or 32 bits")
    return own["optim_bits"], own["min_8bit_size"]


def _read_torchao(found: LowBit, optimizer: Any, params: list[torch.Tensor]) -> bool:
    if optimizer.block_size != _BLOCK:
        _refuse(found, "block_size", optimizer.block_size, f"a scale has {_BLOCK} elements: set {_BLOCK}")
    if any(group.get("amsgrad") for group in optimizer.param_groups):
        _refuse(found, "amsgrad", True, "the largest second moments are not stored: set False")
    if optimizer.bf16_stochastic_round:
        found.without_effect.append("bf16_stochastic_round (master weights are fp32)")
    for param in params:
        if param.numel() < _LEAST_CODED or param.numel() % _BLOCK != 0:
            found.wide.add(id(param))
        else:
            found.moments = "int8"
    return False


def plain_states(state: dict[str, Any], only_shapes: bool = False) -> dict[str, Any]:
    """Returns the moments and the step count of one parameter, with the core's names.

    8-bit moments are decoded to fp32, and the others stay as they are. With ``only_shapes``, decoded moments are on the
    meta device.
    """
    plain = {}
    for slot, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
        own = state.get(f"state{slot}", state.get(name))
        if hasattr(own, "codes"):
            own = _decoded(own.codes, own.scale, slot == 1, only_shapes)
        elif own is not None and own.dtype == torch.uint8:
            own = _decoded(own, state[f"absmax{slot}"], slot == 1, only_shapes)
        if own is not None:
            plain[name] = own
    return plain | {name: state[name] for name in ("step",) if name in state}


def _decoded(codes: torch.Tensor, scales: torch.Tensor, signed: bool, only_shape: bool) -> torch.Tensor:
    codes = codes.to("meta") if only_shape else codes
    values = _map(signed).to(codes.device)[codes.flatten().int()]
    # Paged states are on the host, while their scales are on the device.
    scales = scales.flatten().to(codes.device).repeat_interleave(_BLOCK)[: values.numel()]
    if scales.numel() != values.numel():
        raise ValueError(
            f"the optimizer has 8-bit states of {values.numel():,} elements without a scale for each {_BLOCK}, as "
            "older versions of bitsandbytes stored them: pass a new optimizer"
        )
    return (values * scales).view(codes.shape)


def _map(signed: bool) -> torch.Tensor:
    """Returns the value of each of the 256 codes, rounded as in the core.

    So the core encodes each of these values as the code that it comes from. See Note [The dynamic map] in
    src/kernels/codes_impl.h.
    """
    codes = torch.arange(256, dtype=torch.float64)
    mantissa, exponent = torch.frexp(2 * (codes - 127).abs() + 1 if signed else codes + 1.5)
    ends = 10.0 ** torch.arange(-6, 1, dtype=torch.float64)
    nothing, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    slope = torch.cat([nothing, (0.9 * ends).float().double(), nothing])
    offset = torch.cat([nothing, (-0.8 * ends).float().double(), one])
    values = (slope[exponent - 1] * 2 * mantissa + offset[exponent - 1]).float()
    return torch.where(codes < 127, -values, values) if signed else values
