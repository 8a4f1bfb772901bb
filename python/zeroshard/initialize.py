"""Implements ``zeroshard.initialize``, which makes an engine from a model and a configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from . import _C
from .configuration import parse_config
from .distributed import device_of_rank, init_distributed
from .engine import Engine
from .loader import Loader
from .metrics import check_folders
from .optimizer import Optimizer, OptimizerSetup, make_optimizer, settings_kept
from .schedule import make_scheduler
from .sequence import group_of_engine, size_before_engine
from .sequence_rows import PieceLoader, SharedLoader


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[[list], torch.optim.Optimizer] | None = None,
    model_parameters: Iterable | None = None,
    training_data: torch.utils.data.Dataset | None = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable | None = None,
    config: str | dict | os.PathLike | None = None,
    mesh_param: Any = None,
    config_params: str | dict | None = None,
) -> tuple[Engine, Any, torch.utils.data.DataLoader | None, Any]:
    """Shards ``model`` as ``config`` says. Collective, so every rank must call it.

    The signature and the result, ``(engine, optimizer, dataloader, lr_scheduler)``, are DeepSpeed's. The engine takes
    over the model's parameters, which stay the same objects. Parameters and buffers get rank 0's values on every rank,
    so ranks may have different seeds when they make the model. With dropout, ranks should get different seeds
    afterwards.

    Args:
        model: any module. ``engine(...)`` calls it. The model keeps its class and its submodules.
        optimizer: a ``torch.optim`` optimizer over the model's parameters, or a callable that makes one from them.
            None: the configuration's optimizer. Without either, the engine can only evaluate.
        model_parameters: parameters or param groups for the configuration's optimizer. None: all trainable parameters.
        training_data: a dataset. The returned loader gives each rank its own micro-batches. With an
            ``IterableDataset``, a rank gets the items that the dataset yields on that rank.
        lr_scheduler: a scheduler, or a callable that makes one from the optimizer. None: the configuration's scheduler.
        config: a path to a DeepSpeed JSON file, its text, or a dict.

    Raises ``ConfigError`` for a wrong configuration. Raises ``ValueError`` if ranks differ in configuration, model, or
    versions of zeroshard, torch and the packages of the model's modules. Raises ``StateError`` for a model that a
    failed ``load_checkpoint`` has left half loaded. After such an error, an existing engine of the model continues as
    before.

    >>> engine, optimizer, loader, scheduler = zeroshard.initialize(model=model, config=config, training_data=rows)
    """
    engine, loader, scheduler = make_engine(
        Engine,
        lambda setup, _: Optimizer(setup),
        args=args,
        model=model,
        optimizer=optimizer,
        model_parameters=model_parameters,
        training_data=training_data,
        lr_scheduler=lr_scheduler,
        distributed_port=distributed_port,
        mesh=mpu if mpu is not None else mesh_param,
        dist_init_required=dist_init_required,
        collate_fn=collate_fn,
        config=config if config is not None else config_params,
    )
    return engine, engine.optimizer, loader, scheduler


EngineType = TypeVar("EngineType", bound=Engine)


def make_engine(
    engine_type: type[EngineType],
    make_front: Callable[[OptimizerSetup, _C.ParsedConfig], Optimizer],
    *,
    args: Any,
    model: nn.Module | None,
    optimizer: torch.optim.Optimizer | Callable[[list], torch.optim.Optimizer] | None,
    model_parameters: Iterable | None,
    training_data: torch.utils.data.Dataset | None,
    lr_scheduler: Any,
    distributed_port: int,
    mesh: Any,
    dist_init_required: bool | None,
    collate_fn: Callable | None,
    config: str | dict | os.PathLike | None,
) -> tuple[EngineType, torch.utils.data.DataLoader | None, Any]:
    """Makes the engine, the loader and the scheduler of ``initialize``. Collective."""
    if model is None:
        raise ValueError("zeroshard.initialize: model is missing")
    sequence_size = size_before_engine(model, mesh)
    settings = config if config is not None else getattr(args, "deepspeed_config", None)
    if settings is None:
        raise ValueError("zeroshard.initialize: config is missing: a path, JSON text or a dict")

    env = _C.rank_environment()
    os.environ.setdefault("MASTER_PORT", str(distributed_port))
    device = _device(model, env.local_rank)
    if dist_init_required is not False:
        init_distributed(device, _timeout(settings, env.world_size, model, sequence_size))
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    parsed = parse_config(settings, world_size=world_size, model=model, sequence_parallel_size=sequence_size)
    sequence_group = group_of_engine(model, parsed.config, device, mesh)

    setup = make_optimizer(model, optimizer, model_parameters, parsed)
    front = make_front(setup, parsed)
    # A new engine takes parameters and states from an earlier engine of the model, which could not continue after that.
    # So code that can fail on one rank alone runs before the engine is made.
    loader = None
    if training_data is not None:
        loader = Loader(
            training_data,
            parsed.config.micro_batch_size,
            collate_fn,
            parsed.config.dataloader_drop_last,
            sequence_size=parsed.config.sequence_parallel_size,
        )
    if not dist.is_initialized() or dist.get_rank() == 0:
        check_folders(parsed.config)
    with settings_kept(setup.param_groups):
        scheduler = make_scheduler(lr_scheduler, front, parsed.config)
        engine = engine_type(model, parsed, setup, front, device)
    engine.lr_scheduler = scheduler
    if loader is not None and sequence_group is not None:
        by_position = not isinstance(training_data, torch.utils.data.IterableDataset)
        loader = (SharedLoader if by_position else PieceLoader)(loader, sequence_group)
    engine.training_dataloader = loader
    return engine, loader, scheduler


def _timeout(
    settings: str | dict | os.PathLike, world_size: int, model: nn.Module, sequence_size: int | None
) -> timedelta | None:
    """Returns ``zeroshard.timeout_s``; None for a wrong configuration, which is reported after connecting."""
    try:
        parsed = parse_config(settings, world_size=world_size, model=model, sequence_parallel_size=sequence_size)
        return timedelta(milliseconds=parsed.config.timeout_ms)
    except (_C.Error, ValueError, OSError, TypeError):
        return None


def _device(model: nn.Module, local_rank: int) -> torch.device:
    """Returns the device of the first parameter on an accelerator, else this rank's default device."""
    for param in model.parameters():
        if param.device.type not in ("cpu", "meta"):
            return param.device
    return device_of_rank(local_rank)
