"""Decides which parameters are gathered, reduced and freed together, and which modules use them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from . import _C
from .marks import mark_of
from .names import is_compiled, original, plain_module, plain_names
from .shards import shard_of

LEAF = "_z3_leaf"  # attribute of a module that is one unit
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


@dataclass
class Param:
    """A parameter: its names, the module that owns it under each name, and its tensor objects.

    A parameter that is tied by storage has several tensor objects. The names do not have the parts that torch.compile
    adds, so two of them can be equal.
    """

    names: list[str]
    tensors: list[nn.Parameter]
    owners: list[nn.Module] = field(default_factory=list)


def is_packed(tensor: torch.Tensor) -> bool:
    """Returns whether the elements are not numbers, as in frozen 4-bit weights of bitsandbytes (``quant_state``)."""
    return not tensor.requires_grad and hasattr(tensor, "quant_state")


@dataclass
class Unit:
    """The parameters of a unit, and the modules during whose forward they must be whole."""

    name: str
    params: list[Param]
    modules: list[nn.Module]
    parent: int = -1


def find_units(model: nn.Module, unit_classes: Sequence[str] = (), leaves: Sequence[nn.Module] = ()) -> list[Unit]:
    """Splits the parameters of ``model`` into units, in the order of its modules.

    A unit is normally a block, which is a module whose class is named in ``unit_classes``. If ``unit_classes`` is
    empty, blocks are the modules whose classes Hugging Face lists in ``_no_split_modules``. If the model has no such
    module, blocks are the elements of each ``ModuleList``, ``Sequential`` and ``ModuleDict``. Parameters outside of
    blocks form one unit per module that uses them. The module that uses a parameter is normally its owner. If the owner
    has no forward (``ParameterList``) or is inside a ``MultiheadAttention``, it is the module around the owner. A tied
    parameter belongs to the first unit that has it, and every module that uses it is a module of that unit. Each module
    that is marked as ``LEAF``, or is in ``leaves``, is one unit with everything that it contains. The parameters of a
    leaf without a forward, such as a ``ModuleList``, are whole while the forward of the module around it runs.

    Raises ``ValueError`` if a name in ``unit_classes`` matches no module, if two different parameters share memory, and
    for a scripted model.

    >>> [unit.name for unit in zeroshard.find_units(model)]
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("the model is a scripted module, which takes no hooks: pass the one that it was made of")
    blocks = [block for _, block in _find_blocks(model, unit_classes)]
    uses = _find_uses(model, _without_blocks_in_leaves(model, blocks, leaves))
    names_of_modules = {id(module): plain_module(name) for name, module in model.named_modules()}

    units: dict[int, Unit] = {}
    for param in _find_params(model):
        all_uses = [use for owner in param.owners for use in uses[id(owner)]]
        block = all_uses[0].block
        # Compares with None, because a compiled module has no truth value.
        first = block if block is not None else all_uses[0].module
        name = names_of_modules[id(first)]
        # A leaf without a forward must be whole while the modules that use its elements run.
        around = [first] if _has_forward(first) else [use.module for use in uses[id(first)]]
        unit = units.setdefault(id(first), Unit(name or "root", [], around))
        unit.params.append(param)
        for use in all_uses:
            if use.block is not first and not any(use.module is module for module in unit.modules):
                unit.modules.append(use.module)
    result = list(units.values())
    _set_parents(model, result, {key: index for index, key in enumerate(units)})
    return result


@dataclass
class _Use:
    """An occurrence of a module in the model."""

    block: nn.Module | None  # the module itself if it is a block, else the block around it, or None
    module: nn.Module  # the module whose forward uses the parameters: the module itself or one around it


def _find_uses(model: nn.Module, blocks: Sequence[nn.Module]) -> dict[int, list[_Use]]:
    """Returns the occurrences of each module, by its ``id()``. A module in several modules has several occurrences."""
    is_block = {id(block) for block in blocks}
    uses: dict[int, list[_Use]] = {}

    def visit(module: nn.Module, around: _Use) -> None:
        block = module if id(module) in is_block else around.block
        # The forward of MultiheadAttention reads the parameters of its out_proj without calling out_proj.
        is_used_alone = block is module or not isinstance(around.module, nn.MultiheadAttention)
        uses_own = is_used_alone and _has_forward(module)
        use = _Use(block, module if uses_own else around.module)
        uses.setdefault(id(module), []).append(use)
        for child in module.children():
            visit(child, use)

    visit(model, _Use(None, model))
    return uses


def _has_forward(module: nn.Module) -> bool:
    """Returns whether the module has a forward around which hooks can run. Hooks cannot run in scripted modules."""
    forward = None if isinstance(module, torch.jit.ScriptModule) else module.forward
    return forward is not None and getattr(forward, "__func__", None) is not nn.Module.forward


def _find_blocks(model: nn.Module, unit_classes: Sequence[str]) -> list[tuple[str, nn.Module]]:
    wanted = set(unit_classes)
    if not wanted:
        for module in model.modules():
            wanted.update(getattr(module, "_no_split_modules", None) or ())
    if wanted:
        # The whole model becomes a unit only if the user names its class.
        modules = [
            (name, m) for name, m in model.named_modules() if _has_forward(m) and (unit_classes or m is not model)
        ]
        blocks = [(name, m) for name, m in modules if type(m).__name__ in wanted]
        missing = set(unit_classes) - {type(m).__name__ for _, m in blocks}
        if missing:
            found = sorted({type(m).__name__ for _, m in modules})
            raise ValueError(
                f"zeroshard.unit_classes names {sorted(missing)}, but the model has no such module; it has {found}"
            )
        if blocks:
            return blocks  # may be nested: a module belongs to the innermost block around it
    return list(_container_elements(model, ""))


def named_leaves(
    model: nn.Module, classes: Sequence[str] = (), names: Sequence[str] = (), name_suffixes: Sequence[str] = ()
) -> tuple[list[nn.Module], list[str]]:
    """Returns the modules that match a class, a name or a suffix of names, and the texts that match no module.

    ``classes`` has names of classes, with or without the name of their Python module.
    """
    leaves, found = [], set()
    for name, module in model.named_modules():
        kind = type(module)
        fitting = {kind.__name__, f"{kind.__module__}.{kind.__qualname__}"} & set(classes)
        both = (name, plain_module(name))
        fitting |= {*both} & set(names)
        fitting |= {end for end in name_suffixes if any(each.endswith(end) for each in both)}
        leaves += [module] if fitting else []
        found |= fitting
    return leaves, [text for text in (*classes, *names, *name_suffixes) if text not in found]


def _without_blocks_in_leaves(
    model: nn.Module, blocks: list[nn.Module], more_leaves: Sequence[nn.Module]
) -> list[nn.Module]:
    """Returns the leaf modules and ``blocks``, without those that are inside of a leaf.

    Leaf modules are the marked modules and ``more_leaves``.
    """
    chosen = {id(module) for module in more_leaves}
    leaves = []
    for module in model.modules():
        if getattr(module, LEAF, False) or id(module) in chosen:
            leaves.append(module)
    inside = {id(inner) for leaf in leaves for inner in leaf.modules() if inner is not leaf}
    return [block for block in [*leaves, *blocks] if id(block) not in inside]


def _container_elements(module: nn.Module, prefix: str, inside: bool = False) -> Iterable[tuple[str, nn.Module]]:
    """Yields each element of a container, with its path, if the element has a forward. Does not look inside of it.

    ``inside`` says that a module around ``module`` is compiled. The graph of that module calls the original modules of
    compiled elements. So in this case the original modules are yielded.
    """
    inside = inside or is_compiled(module)
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(module, _CONTAINERS) and not isinstance(child, _CONTAINERS) and _has_forward(child):
            yield path, original(child) if inside else child
        else:
            yield from _container_elements(child, path, inside)


def _find_params(model: nn.Module) -> list[Param]:
    by_memory: dict[object, Param] = {}
    for module_name, module in model.named_modules():
        for name, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
            path = f"{module_name}.{name}" if module_name else name
            param = by_memory.setdefault(_memory_key(tensor), Param([], []))
            param.names.append(path)
            param.owners.append(module)
            if not any(tensor is other for other in param.tensors):
                param.tensors.append(tensor)
    result = list(by_memory.values())
    plain = plain_names((name, index) for index, param in enumerate(result) for name in param.names)
    for param in result:
        param.names = [plain[name] for name in param.names]
    # Does not compare memory that belongs to an engine or to shards, because that memory can be freed.
    ordinary = [p for p in result if mark_of(p.tensors[0]) is None and shard_of(p.tensors[0]) is None]
    _C.check_apart([(param.names[0], param.tensors[0]) for param in ordinary])
    return result


def _memory_key(tensor: torch.Tensor) -> object:
    """Returns a key that is equal for all tensor objects of one parameter, also if it is tied by storage.

    The key of a tensor that an engine or a shard owns comes from the owner. Other tensors are tied if they have the
    same elements in memory. A tensor without memory is tied only to itself.
    """
    if (mark := mark_of(tensor)) is not None:
        return mark[:3]
    if (shard := shard_of(tensor)) is not None:
        return id(shard)
    if tensor.is_meta or tensor.numel() == 0:
        return id(tensor)
    return (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def _set_parents(model: nn.Module, units: list[Unit], unit_of_module: dict[int, int]) -> None:

    def visit(module: nn.Module, enclosing: int) -> None:
        index = unit_of_module.get(id(module), -1)
        if index >= 0 and index != enclosing:
            units[index].parent = enclosing
            enclosing = index
        for child in module.children():
            visit(child, enclosing)

    visit(model, -1)
