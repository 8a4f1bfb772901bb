"""Makes ``generate()`` of transformers work at stage 3."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .. import _C
from ..marks import mark_of
from ..wrapping import wrap_once
from .zero import GatheredParameters

_budgets: weakref.WeakKeyDictionary[_C.Engine, int] = weakref.WeakKeyDictionary()  # most elements to keep gathered


def keep_gathered(core: _C.Engine, budget: int) -> None:
    """Keeps the parameters of ``core`` gathered during a ``generate()`` if they have at most ``budget`` elements.

    With more elements, every token gathers every unit, and all ranks must generate equally many tokens. ``generate()``
    is collective in both cases.
    """
    _budgets[core] = budget
    mixin = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
    wrap_once(mixin, "generate", _generate)


def _generate(own: Callable[..., Any], self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with GatheredParameters(_kept(self)):
        return own(self, *args, **kwargs)


@contextmanager
def unwrap_model_for_generation(model: nn.Module) -> Iterator[nn.Module]:
    """Gathers all parameters of ``model`` at stage 3, even if they exceed the budget. Drops writes to them. Collective.

    The budget is that of ``keep_gathered``. The engine's hooks stay, but do nothing inside.
    """
    with GatheredParameters(model.parameters()):
        yield model


def _kept(module: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters to keep gathered: all parameters of each engine that is within its budget."""
    by_core: dict[_C.Engine, list[nn.Parameter]] = {}
    for param in module.parameters():
        if (mark := mark_of(param)) is not None and (core := mark.core()) in _budgets:
            by_core.setdefault(core, []).append(param)
    fitting = (params for core, params in by_core.items() if sum(p.numel() for p in params) <= _budgets[core])
    return [param for params in fitting for param in params]
