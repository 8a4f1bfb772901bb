"""Gathers sharded parameters, so that scripts can read and change them."""

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
    """Makes parameters whole inside the context, so that they can be read like any other tensor.

    Every rank must enter the context with the same parameters. At the end of a context with ``modify_rank``, every rank
    takes over the values that rank ``modify_rank`` has written. Master weights take over these values, too. After an
    exception inside such a context, the writes are dropped, and the parameters get their old values back. For this
    purpose the context first copies parameters that are whole anyway, as at stages 0 to 2, to host memory.

    Without ``modify_rank`` the parameters may only be read. A rank that has written to a parameter raises
    ``StateError`` when the context ends. (Only writes to parameters of ``deepspeed.zero.Init`` that no engine has yet
    are dropped without an error.) Views that were made inside (``param.detach()``) may be kept. They keep the values
    that the parameters have when the context ends. ``params`` may contain None and tensors of no engine, which do not
    change.

    >>> with zeroshard.gathered(model.parameters()):
    ...     model.generate(ids, max_new_tokens=8)
    """
    with _gathered(params, modify_rank, can_drop=modify_rank is not None):
        yield


@contextmanager
def gathered_to_drop(params: Iterable[torch.Tensor]) -> Iterator[None]:
    """Makes parameters whole for reading, like ``gathered``. Drops writes to them at the end."""
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
    """Makes the units of ``tensors`` whole. Ignores tensors that are no parameters of an engine.

    With ``can_drop``, restores the old values after an exception and, if there is no ``modify_rank``, at the end.
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
        # Drops the writes, because a half-made change must not be kept. This release is no collective, because other
        # ranks might not have raised.
        for core, indices in entered:
            core.release(indices, core.DROP_WRITES)
        raise
    for core, indices in entered:
        without_rank = core.DROP_WRITES if can_drop else core.READ_ONLY
        core.release(indices, without_rank if modify_rank is None else modify_rank)


def take_loaded_state_dicts(module: nn.Module) -> list[RemovableHandle]:
    """Installs hooks that make ``module.load_state_dict`` also set shards and master weights. Returns their handles.

    From then on ``load_state_dict`` is collective, and every rank gets the values that rank 0 loads. With
    ``assign=True`` it raises ``ValueError``.
    """
    loading = []

    def before(module: nn.Module, state_dict: dict, prefix: str, local_metadata: dict, *args: Any) -> None:
        if local_metadata.get("assign_to_params_buffers"):
            raise ValueError(
                "load_state_dict(assign=True) would replace parameters that zeroshard shards: leave assign out, or "
                "load before zeroshard.initialize"
            )
        # Keeps no copy to restore after an exception, because there might be no memory for a second whole model.
        loading.append(_gathered(module.parameters(), 0, can_drop=False))
        loading[-1].__enter__()

    def after(module: nn.Module, incompatible_keys: Any) -> None:
        loading.pop().__exit__(None, None, None)

    return [
        module.register_load_state_dict_pre_hook(OwnHook(before)),
        module.register_load_state_dict_post_hook(OwnHook(after)),
    ]
