"""Finds modules inside of the wrappers of torch.compile, and names without the parts that torch.compile adds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from torch import nn

COMPILED = "_orig_mod"  # name under which a compiled module has the original one


def is_compiled(module: nn.Module) -> bool:
    return COMPILED in module._modules


def original(module: nn.Module) -> nn.Module:
    """Returns the module that torch.compile has wrapped, or ``module`` if it is not compiled or has other parts."""
    has_more = len(module._modules) > 1 or module._parameters or module._buffers
    return original(module._modules[COMPILED]) if is_compiled(module) and not has_more else module


def plain_module(path: str) -> str:
    """Returns the name that the module at ``path`` would have if nothing was compiled.

    >>> plain_module("_orig_mod.layers.0._orig_mod")
    'layers.0'
    """
    return ".".join(part for part in path.split(".") if part != COMPILED)


def plain_name(path: str) -> str:
    """Returns the name that the parameter or buffer at ``path`` would have if nothing was compiled.

    >>> plain_name("_orig_mod.layers.0._orig_mod.weight")
    'layers.0.weight'
    """
    module, _, name = path.rpartition(".")
    return f"{plain}.{name}" if (plain := plain_module(module)) else name


def plain_names(named: Iterable[tuple[str, Hashable]]) -> dict[str, str]:
    """Returns a dict from each name to its plain name. Different things with equal plain names keep their own names.

    ``named`` has each name together with a number that identifies the named thing, such as its ``id()``.
    """
    named = list(named)
    owners: dict[str, set[Hashable]] = {}
    for name, thing in named:
        owners.setdefault(plain_name(name), set()).add(thing)
    plain = {name: plain_name(name) for name, _ in named}
    return {name: each if len(owners[each]) == 1 else name for name, each in plain.items()}
