"""Implements ``deepspeed.comm``: DeepSpeed's signatures over torch.distributed."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from .. import _C, distributed
from ..messages import log

PORT = 29500
TIMEOUT = timedelta(minutes=int(os.environ.get("DEEPSPEED_TIMEOUT") or 10))
NCCL_BACKEND, GLOO_BACKEND = "nccl", "gloo"
_BACKENDS = (NCCL_BACKEND, GLOO_BACKEND)


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = PORT,
    verbose: bool = True,
    timeout: timedelta = TIMEOUT,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Starts torch.distributed for the ranks of any launcher, or for one rank without a launcher.

    Args:
        dist_backend: "nccl", "gloo" or torch's backends by device, such as "cpu:gloo,cuda:nccl". None chooses by the
            device, and so does "nccl" on a host without GPUs.
        distributed_port: port of rank 0's store, if the launcher sets no MASTER_PORT.
        timeout: how long ranks wait for one another.
        init_method: a URL for torch.distributed, which needs `rank` and `world_size`.
        dist_init_required: False raises ``StateError`` if torch.distributed is not started yet.

    Does nothing if torch.distributed is started. With `rank`, `world_size` or `init_method`, starts it by torch's own
    call. Otherwise starts it for the launcher's ranks, and then sets those of RANK, WORLD_SIZE, LOCAL_RANK and
    LOCAL_WORLD_SIZE that are not set. `auto_mpi_discovery`, `verbose` and `config` have no effect, because zeroshard
    always finds ranks of mpirun and srun.
    """
    if dist_init_required is False and not dist.is_initialized():
        raise _C.StateError(
            "init_distributed: dist_init_required is False, and torch.distributed is not started: leave it out, or "
            "call torch.distributed.init_process_group before"
        )
    if not isinstance(timeout, timedelta):
        raise ValueError(f"init_distributed: timeout is {timeout!r}, expected a datetime.timedelta")
    if not dist.is_initialized():
        backend = _backend(dist_backend)
        if init_method is not None or rank >= 0 or world_size > 0:
            dist.init_process_group(
                backend or _by_device(), init_method=init_method, rank=rank, world_size=world_size, timeout=timeout
            )
        else:
            _from_environment(backend, distributed_port, timeout)
    _tell_accelerate()


def start_alone(model: torch.nn.Module | None) -> None:
    """Makes a group of this one rank if there is no launcher and torch.distributed is not started."""
    if not dist.is_initialized() and not _C.rank_environment().source:
        params = model.parameters() if isinstance(model, torch.nn.Module) else ()
        _from_environment(
            None, PORT, TIMEOUT, next((p.device for p in params if p.device.type not in ("cpu", "meta")), None)
        )


def _from_environment(backend: str | None, port: int, timeout: timedelta, device: torch.device | None = None) -> None:
    env = _C.rank_environment()
    if env.source:
        os.environ.setdefault("MASTER_PORT", str(port))
    distributed.init_distributed(device, timeout, backend=backend, alone=True)
    distributed.keep_default_group()  # the script may use the group
    local_size = env.local_world_size or int(os.environ.get("LOCAL_WORLD_SIZE", env.world_size))
    for name, value in (
        ("RANK", env.rank),
        ("WORLD_SIZE", env.world_size),
        ("LOCAL_RANK", env.local_rank),
        ("LOCAL_WORLD_SIZE", local_size),
    ):
        if not os.environ.get(name):
            os.environ[name] = str(value)


def _backend(name: str | None) -> str | None:
    """Returns the backend that the caller requests, or None if the device decides. Raises ``ValueError`` for others."""
    if name is None or ":" in name:  # for example "cpu:gloo,cuda:nccl", which torch reads
        return name
    if name.lower() not in _BACKENDS:
        raise ValueError(f"init_distributed: dist_backend is '{name}', expected 'nccl', 'gloo' or None")
    if name.lower() == NCCL_BACKEND and not torch.cuda.is_available():
        if _C.rank_environment().rank == 0:
            log("init_distributed: there are no GPUs, so the ranks communicate by gloo instead of nccl")
        return None
    return name.lower()


def _by_device() -> str:
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    return dist.get_default_backend_for_device(device)


def _tell_accelerate() -> None:
    """Gives Accelerate a backend if it has found none, as on a host without a GPU.

    Accelerate imports ``deepspeed.comm`` while it makes its state. Later it counts the ranks only if the state has a
    backend. Without one it would take each rank for a separate job.
    """
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    shared = getattr(state, "_shared_state", None)
    making = isinstance(shared, dict) and "backend" in shared and "num_processes" not in shared
    if making and shared["backend"] is None and dist.is_initialized():
        shared["backend"] = str(dist.get_backend())


def is_initialized() -> bool:
    if dist.is_initialized():
        _tell_accelerate()
        return True
    return False


def is_available() -> bool:
    return dist.is_available()


def get_local_rank() -> int:
    """Returns this rank's number among the ranks of its host."""
    return _C.rank_environment().local_rank


def get_world_group() -> dist.ProcessGroup:
    return dist.group.WORLD


def get_global_rank(group: dist.ProcessGroup | None = None, group_rank: int = 0) -> int:
    return group_rank if group is None else dist.get_global_rank(group, group_rank)


def get_all_ranks_from_group(group: dist.ProcessGroup | None = None) -> list[int]:
    return dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)


def new_group(ranks: list[int] | None = None, **options: Any) -> dist.ProcessGroup:
    return dist.new_group(ranks, **options)


def initialize_mesh_device(mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]) -> Any:
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    return dist.init_device_mesh(device.type, mesh_shape, mesh_dim_names=mesh_dim_names)


def configure(
    deepspeed_config: Any = None,
    enabled: bool | None = None,
    prof_all: bool | None = None,
    prof_ops: list[str] | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
) -> None:
    """Raises ``ValueError`` if ``enabled``, because zeroshard does not have DeepSpeed's log of collectives."""
    if enabled:
        raise ValueError(
            "deepspeed.comm.configure: enabled is True, and zeroshard has no log of collectives: "
            "torch.profiler shows them"
        )


def has_all_gather_into_tensor() -> bool:
    return True


has_reduce_scatter_tensor = has_all_gather_into_tensor


def _passed_on(name: str, **renamed: str) -> Callable[..., Any]:
    """Returns torch's function, but with DeepSpeed's keywords, too. `renamed` maps DeepSpeed's keywords to torch's."""
    function = getattr(dist, name)

    @functools.wraps(function)
    def call(*args: Any, prof: bool = False, log_name: str | None = None, debug: Any = None, **options: Any) -> Any:
        return function(*args, **{renamed.get(key, key): value for key, value in options.items()})

    return call


all_gather = _passed_on("all_gather")
all_gather_into_tensor = allgather_fn = _passed_on("all_gather_into_tensor", tensor="input_tensor")
all_gather_object = _passed_on("all_gather_object")
all_reduce = inference_all_reduce = _passed_on("all_reduce")
all_to_all = _passed_on("all_to_all")
all_to_all_single = _passed_on("all_to_all_single", tensor="input")
barrier = _passed_on("barrier")
batch_isend_irecv = _passed_on("batch_isend_irecv")
broadcast = _passed_on("broadcast")
broadcast_object_list = _passed_on("broadcast_object_list")
destroy_process_group = _passed_on("destroy_process_group")
gather = _passed_on("gather")
get_rank = _passed_on("get_rank")
get_world_size = _passed_on("get_world_size")
irecv = _passed_on("irecv")
isend = _passed_on("isend")
monitored_barrier = _passed_on("monitored_barrier")
recv = _passed_on("recv")
reduce = _passed_on("reduce")
reduce_scatter = _passed_on("reduce_scatter")
reduce_scatter_tensor = reduce_scatter_fn = _passed_on("reduce_scatter_tensor", output_tensor="output", tensor="input")
scatter = _passed_on("scatter")
send = _passed_on("send")
ProcessGroup = dist.ProcessGroup

__all__ = [
    "GLOO_BACKEND",
    "NCCL_BACKEND",
    "ProcessGroup",
    "ReduceOp",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "allgather_fn",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "configure",
    "destroy_process_group",
    "gather",
    "get_all_ranks_from_group",
    "get_global_rank",
    "get_local_rank",
    "get_rank",
    "get_world_group",
    "get_world_size",
    "has_all_gather_into_tensor",
    "has_reduce_scatter_tensor",
    "inference_all_reduce",
    "init_distributed",
    "initialize_mesh_device",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "monitored_barrier",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_fn",
    "reduce_scatter_tensor",
    "scatter",
    "send",
]
