"""Process groups from the environment of torchrun, zeroshard run, mpirun or srun."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from . import _C
from .interruptible import interruptibly

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def init_distributed(device: torch.device | str | None = None, timeout: timedelta | None = None) -> None:
    """Starts torch.distributed if it was not and there is more than one rank: NCCL for CUDA devices, else Gloo.

    Ranks are read from torchrun's variables, else from those of Open MPI, MPICH or Slurm. When all ranks are on
    one host, or the master address is the loopback interface, neither Gloo nor NCCL listens on any other.
    """
    if dist.is_initialized():
        return
    env = _C.rank_environment()
    if env.world_size == 1:
        return
    device = torch.device(device) if device is not None else default_device(env.local_rank)
    backend = "nccl" if device.type == "cuda" else "gloo"
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = _port(os.environ.get("MASTER_PORT", "29500"))
    timeout = timeout or timedelta(minutes=10)
    if host in _LOOPBACK or env.local_world_size == env.world_size:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, "lo")
    store = interruptibly(lambda: _make_store(host, port, env.rank, env.world_size, timeout))
    interruptibly(
        lambda: dist.init_process_group(backend, store=store, rank=env.rank, world_size=env.world_size, timeout=timeout)
    )


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError(f"MASTER_PORT is '{text}', expected 1 to 65535")
    return int(text)


def default_device(local_rank: int) -> torch.device:
    """The GPU of this rank's number, where there are any. Raises ValueError when there are fewer GPUs than ranks."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if local_rank >= gpus:
        raise ValueError(
            f"local rank {local_rank} has no GPU of its own: this host shows {gpus} (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}). Start at most {gpus} rank(s) on it. To share one, move "
            "the model to it and call torch.distributed.init_process_group('gloo') before zeroshard.initialize"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _make_store(host: str, port: int, rank: int, world_size: int, timeout: timedelta) -> dist.Store:
    if rank != 0 or host not in _LOOPBACK or "TORCHELASTIC_USE_AGENT_STORE" in os.environ:
        # torchrun's agent already serves the store at this address; other ranks of any launcher are clients.
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_master = rank == 0 and not agent
        return dist.TCPStore(host, port, world_size, is_master=is_master, timeout=timeout)
    # TCPStore would listen on every interface: hand it a socket that is bound to this one.
    listener = socket.socket(socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise RuntimeError(f"port {port} of 127.0.0.1 (MASTER_PORT) cannot be used: {error.strerror}") from error
    listener.listen()
    fd = listener.detach()
    return dist.TCPStore("127.0.0.1", port, world_size, is_master=True, timeout=timeout, master_listen_fd=fd)
