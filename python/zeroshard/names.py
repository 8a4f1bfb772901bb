"""Modules without what torch.compile puts around them, and names without what it puts into them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from torch import nn

COMPILED = "_orig_mod"  # where a compiled module has the module that it was made of


def is_compiled(module: nn.Module) -> bool:
    return COMPILED in module._modules


def original(module: nn.Module) -> nn.Module:
    """What torch.compile made ``module`` of; ``module`` if it is not compiled, or has got parts of its own since."""
    has_more = len(module._modules) > 1 or module._parameters or module._buffers
    return original(module._modules[COMPILED]) if is_compiled(module) and not has_more else module


def plain_module(path: str) -> str:
    """The name that a module would have if nothing was compiled.

    >>> plain_module("_orig_mod.layers.0._orig_mod")
    'layers.0'
    """
    return ".".join(part for part in path.split(".") if part != COMPILED)


def plain_name(path: str) -> str:
    """The same for a parameter or a buffer.

    >>> plain_name("_orig_mod.layers.0._orig_mod.weight")
    'layers.0.weight'
    """
    module, _, name = path.rpartition(".")
    return f"{plain}.{name}" if (plain := plain_module(module)) else name


def plain_names(named: Iterable[tuple[str, Hashable]]) -> dict[str, str]:
    """The plain name for each name; things that would share a plain name keep their own names.

    ``named``: each name with a number, such as ``id()``, of what it names.
    """
    named = list(named)
    owners: dict[str, set[Hashable]] = {}
    for name, thing in named:
        owners.setdefault(plain_name(name), set()).add(thing)
    plain = {name: plain_name(name) for name, _ in named}
    return {name: each if len(owners[each]) == 1 else name for name, each in plain.items()}
