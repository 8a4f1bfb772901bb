"""Marks that connect parameters, modules and users' optimizers with their engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

import torch

from . import _C

_MARK = "_zeroshard_unit"
_OWNER = "_zeroshard_owner"
STEP_OF_USER = "_zeroshard_step_of_user"  # where a step() that replaces an optimizer's own step() keeps the original


class Mark(NamedTuple):
    """The mark on a tensor object of a parameter."""

    core: weakref.ref[_C.Engine]
    unit: int
    position: int  # position of the parameter in its unit
    owner: weakref.ref[Any]

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle()


def refuse_to_pickle() -> NoReturn:
    """Raises ``StateError``, because objects of an engine must not be pickled, for example by ``torch.save``."""
    raise _C.StateError(
        "what belongs to an engine cannot be pickled, and so not be saved by torch.save: save "
        "model.state_dict() inside zeroshard.gathered(model.parameters()), or call engine.save_checkpoint, "
        "engine.save_16bit_model or engine.save_pretrained. After engine.destroy() the model is an ordinary one"
    )


def mark(tensor: torch.Tensor, of: Mark) -> None:
    setattr(tensor, _MARK, of)


def unmark(tensor: torch.Tensor) -> None:
    delattr(tensor, _MARK)


def mark_of(tensor: torch.Tensor) -> Mark | None:
    """Returns the mark of a parameter that a living engine has, else None.

    The engine can have freed the parameter's memory.
    """
    found: Mark | None = getattr(tensor, _MARK, None)
    return found if found is not None and found.core() is not None else None


def unit_of(found: Mark | None) -> tuple[_C.Engine, int] | None:
    """Returns the engine of a marked parameter and the index of its unit; None if no living engine has it."""
    core = found.core() if found is not None else None
    return (core, found.unit) if core is not None else None


def run_of(found: Mark | None) -> Any:
    """Returns the run of the engine that has the parameter, or None if the engine object is gone or has ended."""
    owner = found.owner() if found is not None else None
    run = owner.run if owner is not None else None
    return run if run is not None and not run.has_ended else None


def owners_of(params: Iterable[torch.Tensor]) -> Iterator[tuple[Any, int]]:
    """Yields the owner and the index of the unit of each parameter that has an owner."""
    for param in params:
        found: Mark | None = getattr(param, _MARK, None)
        if found is not None and (owner := found.owner()) is not None:
            yield owner, found.unit


def mark_optimizer(optimizer: torch.optim.Optimizer, owner: Any) -> None:
    vars(optimizer)[_OWNER] = weakref.ref(owner)


def unmark_optimizer(optimizer: torch.optim.Optimizer) -> None:
    vars(optimizer).pop(_OWNER, None)


def made_with(optimizer: torch.optim.Optimizer) -> list[list[torch.Tensor]]:
    """Returns the parameters with which an optimizer was made, by param group.

    The function also works while the optimizer has slices instead of these parameters.
    """
    owner = getattr(optimizer, _OWNER, lambda: None)()
    return owner.params_of_groups if owner is not None else [group["params"] for group in optimizer.param_groups]


def step_of(optimizer: torch.optim.Optimizer) -> Callable:
    """Returns the ``step()`` that an optimizer has when no engine uses it."""
    return getattr(optimizer.step, STEP_OF_USER, optimizer.step)


class OwnHook:
    """A hook in a module of an engine. A copy of the module gets a hook that does nothing. Pickling raises."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> None:
        self._hook(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _nothing

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle()


def _nothing(*args: Any) -> None:
    pass
