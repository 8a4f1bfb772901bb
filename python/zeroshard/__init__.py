"""zeroshard: ZeRO sharded data-parallel training for any PyTorch module.

>>> engine, optimizer, loader, scheduler = zeroshard.initialize(model=model, config="ds_config.json")
>>> loss = engine(batch)
>>> engine.backward(loss)
>>> engine.step()
"""

# ruff: noqa: E402 - the compiled part must be found before it is imported
import torch

from .core import find_core

__path__.insert(0, str(find_core(__path__, torch.__version__, torch.version.cuda)))

from ._C import CommError, ConfigError, Error, InternalError, IoError, StateError, ValueError, __version__  # noqa: A004
from .activations import recompute
from .compat.alias import as_deepspeed
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
