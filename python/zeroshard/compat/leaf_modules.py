"""Implements ``deepspeed.utils.z3_leaf_module``: marks modules that form one unit with all modules inside them."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ..names import plain_module
from ..units import LEAF


def set_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: list[type[nn.Module] | str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Makes each module of these classes one unit, together with all modules inside it. Returns the modules."""
    found = [module for module in model.modules() if _is_of(module, leaf_module_classes)]
    for module in found:
        setattr(module, LEAF, True)
    if not found and raise_if_not_found:
        raise ValueError(f"set_z3_leaf_modules: {type(model).__name__} has no module of {_names(leaf_module_classes)}")
    return found


def unset_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: list[type[nn.Module] | str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Undoes ``set_z3_leaf_modules``. An engine that already exists keeps its units."""
    found = [module for module in model.modules() if _is_of(module, leaf_module_classes) and z3_leaf_module(module)]
    for module in found:
        delattr(module, LEAF)
    if not found and raise_if_not_found:
        raise ValueError(f"unset_z3_leaf_modules: no module of {_names(leaf_module_classes)} is a leaf module")
    return found


def set_z3_leaf_modules_by_name(
    model: nn.Module, module_names: list[str], raise_if_not_found: bool = True
) -> tuple[list[nn.Module], list[str]]:
    """Makes each module with one of these full names one unit. Returns the modules, and the unused names."""
    return _set_leaves(model, module_names, lambda name, wanted: name == wanted, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(
    model: nn.Module, module_name_suffixes: list[str], raise_if_not_found: bool = True
) -> tuple[list[nn.Module], list[str]]:
    """Makes each module whose full name has one of these ends one unit. Returns the modules, and the unused ends."""
    return _set_leaves(model, module_name_suffixes, str.endswith, raise_if_not_found)


def _set_leaves(
    model: nn.Module, wanted: list[str], fits: Callable[[str, str], bool], raise_if_not_found: bool
) -> tuple[list[nn.Module], list[str]]:
    names = [((name, plain_module(name)), module) for name, module in model.named_modules()]
    fitting = [{text for text in wanted if any(fits(name, text) for name in both)} for both, _ in names]
    found = [module for (_, module), texts in zip(names, fitting, strict=True) if texts]
    missing = [text for text in wanted if text not in set().union(*fitting)]
    if missing and raise_if_not_found:
        raise ValueError(f"set_z3_leaf_modules: {type(model).__name__} has no module named {missing}")
    for module in found:
        setattr(module, LEAF, True)
    return found, missing


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if z3_leaf_module(module)]


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    setattr(model, LEAF, flag)


def z3_leaf_module(model: nn.Module) -> bool:
    return bool(getattr(model, LEAF, False))


def z3_leaf_parameter(model: nn.Module) -> bool:
    return z3_leaf_module(model)


def _is_of(module: nn.Module, classes: list[type[nn.Module] | str]) -> bool:
    names = {type(module).__name__, f"{type(module).__module__}.{type(module).__qualname__}"}
    return any(kind in names if isinstance(kind, str) else isinstance(module, kind) for kind in classes)


def _names(classes: list[type[nn.Module] | str]) -> list[str]:
    return [kind if isinstance(kind, str) else kind.__name__ for kind in classes]
