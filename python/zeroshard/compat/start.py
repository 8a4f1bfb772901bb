"""``deepspeed.initialize``: as zeroshard's, and without a launcher it starts torch.distributed for one rank."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from .. import initialize as native
from .comm import start_alone


@functools.wraps(native)
def initialize(args: Any = None, model: nn.Module | None = None, *more: Any, **named: Any) -> tuple:
    if named.get("dist_init_required") is not False:
        start_alone(model)
    return native(args, model, *more, **named)
