"""zeroshard: ZeRO sharded data-parallel training for any PyTorch module.

>>> engine, optimizer, loader, scheduler = zeroshard.initialize(model=model, config="ds_config.json")
>>> loss = engine(batch)
>>> engine.backward(loss)
>>> engine.step()
"""

# ruff: noqa: E402 - the compiled part must be found before it is imported
import importlib
from typing import Any

import torch

from .core import find_core

__path__.insert(0, str(find_core(__path__, torch.__version__, torch.version.cuda)))

from ._C import CommError, ConfigError, Error, InternalError, IoError, StateError, ValueError, __version__  # noqa: A004
from .activations import recompute
from .distributed import init_distributed
from .engine import Engine
from .gathering import gathered
from .initialize import initialize
from .materialize import Init
from .param_values import (
    get_gradient,
    get_gradient_norms,
    get_master_weight,
    get_optimizer_state,
    set_gradient,
    set_master_weight,
    set_optimizer_state,
)
from .sequence import sequence_parallel
from .tiles import tile
from .units import find_units

__all__ = [
    "CommError",
    "ConfigError",
    "Engine",
    "Error",
    "Init",
    "InternalError",
    "IoError",
    "StateError",
    "ValueError",
    "__version__",
    "as_deepspeed",
    "find_units",
    "gathered",
    "get_gradient",
    "get_gradient_norms",
    "get_master_weight",
    "get_optimizer_state",
    "init_distributed",
    "initialize",
    "recompute",
    "sequence_parallel",
    "set_gradient",
    "set_master_weight",
    "set_optimizer_state",
    "tile",
]

# Training needs none of these modules, so each is imported only when its name is first used.
_ON_DEMAND = {"as_deepspeed": "zeroshard.compat.alias"}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'zeroshard' has no attribute '{name}'", name=name)
    return getattr(importlib.import_module(_ON_DEMAND[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_DEMAND})
