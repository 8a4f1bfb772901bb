"""Makes ``print(param)`` and debuggers show a description of a parameter whose memory is freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .marks import mark_of, run_of
from .shards import is_whole
from .wrapping import wrap_once


def show_sharded_parameters() -> None:
    """Makes ``repr()`` of a sharded ``nn.Parameter`` return a description. Using its values still raises."""
    wrap_once(nn.Parameter, "__repr__", _show)


def _show(own: Callable[..., str], param: nn.Parameter, *args: Any, **kwargs: Any) -> str:
    if type(param) is not nn.Parameter or is_whole(param):
        return own(param, *args, **kwargs)
    what = f"{list(param.shape)} {str(param.dtype)[6:]} on {param.device}"
    mark = mark_of(param)
    run = run_of(mark)
    if run is None:
        return f"Parameter {what}, without values: its engine has gone"
    name = run.units[mark.unit].params[mark.position].names[0]
    return (
        f"Parameter '{name}' {what}, sharded over {run.world_size} rank(s): inside zeroshard.gathered(param) it has "
        "its values"
    )
