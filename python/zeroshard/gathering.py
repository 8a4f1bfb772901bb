"""Reading and changing sharded parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .marks import OwnHook, mark_of
from .shards import whole


@contextmanager
def gathered(params: torch.Tensor | Iterable[torch.Tensor | None], modify_rank: int | None = None) -> Iterator[None]:
    """Makes parameters whole inside the context: they can be read like any tensor.

    Every rank must enter it with the same parameters. With ``modify_rank``, every rank takes over what that rank wrote
    to them at exit (master weights included). An exception inside drops the writes: parameters get their old values.
    Where parameters are whole anyway, as at stages 0 to 2, a copy of their units is kept for that in host memory.

    Without ``modify_rank`` they are for reading: a rank that has written to one gets a ``StateError`` at exit. (Writes
    to parameters that no engine has yet, of ``deepspeed.zero.Init``, are dropped.)
    Tensors made of the parameters inside (``param.detach()``) may be kept: they have the values of the end ever after.
    ``params`` may hold None and tensors that are not zeroshard's; they are left alone.

    >>> with zeroshard.gathered(model.parameters()):
    ...     model.generate(ids)
    """
    with _gathered(params, modify_rank, can_drop=modify_rank is not None):
        yield


@contextmanager
def gathered_to_drop(params: Iterable[torch.Tensor]) -> Iterator[None]:
    """Makes parameters whole for reading, like ``gathered``. Writes to them have no effect afterwards."""
    with _gathered(params, None, can_drop=True):
        yield


@contextmanager
def _gathered(
    params: torch.Tensor | Iterable[torch.Tensor | None], modify_rank: int | None, *, can_drop: bool
) -> Iterator[None]:
    if modify_rank is not None and modify_rank < 0:
        raise ValueError(f"gathered: modify_rank is {modify_rank}, expected a rank >= 0")
    tensors = [params] if isinstance(params, torch.Tensor) else [p for p in params if p is not None]
    with whole(tensors, modify_rank), _units_gathered(tensors, modify_rank, can_drop=can_drop):
        yield


@contextmanager
def _units_gathered(tensors: list[torch.Tensor], modify_rank: int | None, *, can_drop: bool) -> Iterator[None]:
    """Makes the units of parameters of engines whole.

    ``can_drop``: values can be restored, after an exception and, without ``modify_rank``, at the end.
    """
    units: dict[int, tuple[object, set[int]]] = {}
    for tensor in tensors:
        if (mark := mark_of(tensor)) is not None:
            core = mark.core()
            units.setdefault(id(core), (core, set()))[1].add(mark.unit)
    entered = []
    try:
        for core, indices in units.values():
            core.gather(sorted(indices), modify_rank is not None, can_drop)
            entered.append((core, sorted(indices)))
        yield
    except BaseException:
        # Peers may not get here, so no collective may run, and a half-made change must not be kept.
        for core, indices in entered:
            core.release(indices, core.DROP_WRITES)
        raise
    for core, indices in entered:
        without_rank = core.DROP_WRITES if can_drop else core.READ_ONLY
        core.release(indices, without_rank if modify_rank is None else modify_rank)


def take_loaded_state_dicts(module: nn.Module) -> list[RemovableHandle]:
    """Lets ``module.load_state_dict`` change shards and master weights, too. Collective; rank 0's values count."""
    loading = []

    def before(module: nn.Module, state_dict: dict, prefix: str, local_metadata: dict, *args: Any) -> None:
        if local_metadata.get("assign_to_params_buffers"):
            raise ValueError(
                "load_state_dict(assign=True) would replace parameters that zeroshard shards: leave assign out, or "
                "load before zeroshard.initialize"
            )
        # No copy is kept for an exception inside, because a second whole model might not fit.
        loading.append(_gathered(module.parameters(), 0, can_drop=False))
        loading[-1].__enter__()

    def after(module: nn.Module, incompatible_keys: Any) -> None:
        loading.pop().__exit__(None, None, None)

    return [
        module.register_load_state_dict_pre_hook(OwnHook(before)),
        module.register_load_state_dict_post_hook(OwnHook(after)),
    ]
