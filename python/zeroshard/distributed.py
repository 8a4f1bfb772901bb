"""Makes the default process group from the environment of torchrun, zeroshard run, mpirun or srun."""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

from . import _C
from .meeting import await_left_behind, meet, while_all_live

_END_S = 2.0  # the end of a process waits this many seconds for collectives that its script left running
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
# The stores that this process serves as rank 0, by their address. A try that could not make the default group leaves
# its store here for the next try.
_kept_stores: dict[tuple[str, int], dist.Store] = {}
# While nothing uses the default group that this module made: the address of the group's store, and the store. Else
# None.
_unused_group: tuple[tuple[str, int], dist.Store] | None = None
_started_group: weakref.ref[dist.ProcessGroup] | None = None  # the default group that this module made


def init_distributed(
    device: torch.device | str | None = None,
    timeout: timedelta | None = None,
    *,
    backend: str | None = None,
    alone: bool = False,
) -> None:
    """Starts torch.distributed for the ranks of a launcher, unless it has started: NCCL for CUDA devices, else Gloo.

    The ranks come from the environment variables of torchrun, or else of Open MPI, MPICH or Slurm. Without such
    variables the call does nothing, or with ``alone`` makes a group of this process alone. ``backend`` names another
    backend. ``GLOO_SOCKET_IFNAME`` and ``NCCL_SOCKET_IFNAME`` name the interfaces of Gloo and NCCL. Without these
    variables, both listen only on the loopback interface if all ranks are on one host, or if the master address is a
    loopback address. Otherwise Gloo uses the interface that leads to the master address.

    Raises ``CommError`` if a rank does not arrive within ``timeout`` (by default 10 minutes), dies or gives up. After a
    time-out, the error says which ranks are missing. After any of these errors, every rank may call the function again.

    >>> zeroshard.init_distributed("cpu")
    """
    global _unused_group, _started_group
    timeout = timeout or timedelta(minutes=10)
    await_left_behind(timeout)
    if dist.is_initialized():
        return
    env = _C.rank_environment()
    if not env.source and not alone:
        return
    device = torch.device(device) if device is not None else default_device(env.local_rank)
    backend = backend or dist.get_default_backend_for_device(device)
    if env.world_size == 1:
        _stay_on_loopback()
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        _started_group = weakref.ref(dist.group.WORLD)
        return
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = _port(os.environ.get("MASTER_PORT", "29500"))
    if host in _LOOPBACK or env.local_world_size == env.world_size:
        _stay_on_loopback()
    if (store := _kept_stores.pop((host, port), None)) is None:
        store = _make_store(host, port, env.rank, env.world_size, timeout)
    else:
        store.set_timeout(timeout)
    if "GLOO_SOCKET_IFNAME" not in os.environ:  # Gloo would take the address of this host's name: 127.0.1.1 on Debian
        os.environ["GLOO_SOCKET_IFNAME"] = _C.interface_towards(host)
    try:
        _meet_and_connect(store, backend, env, timeout)
    except BaseException:
        if env.rank == 0:
            _kept_stores[host, port] = store
        raise
    _started_group = weakref.ref(dist.group.WORLD)
    _unused_group = ((host, port), store)


def _has_started_group() -> bool:
    """Returns whether there is a default group and this module made it, not the script."""
    return _started_group is not None and dist.is_initialized() and _started_group() is dist.group.WORLD


def _meet_and_connect(store: dist.Store, backend: str, env: _C.RankEnvironment, timeout: timedelta) -> None:
    if attempt := os.environ.get("TORCHELASTIC_RESTART_COUNT"):  # torchrun keeps the same store across restarts
        store = dist.PrefixStore(f"attempt/{attempt}", store)
    meeting = meet(store, env.rank, env.world_size, timeout, "the default process group")
    while_all_live(
        meeting,
        "the default process group",
        lambda: dist.init_process_group(
            backend, store=store, rank=env.rank, world_size=env.world_size, timeout=timeout
        ),
        undo=lambda _: dist.destroy_process_group(),
    )
    meeting.end()


def keep_default_group() -> None:
    """Records that something uses the default group."""
    global _unused_group
    _unused_group = None


def end_default_group() -> None:
    """Ends the default group if this module made it and nothing uses it yet. Rank 0 keeps the store for later tries."""
    if _unused_group is not None and _has_started_group():
        if dist.get_rank() == 0:
            _kept_stores[_unused_group[0]] = _unused_group[1]
        dist.destroy_process_group()
    keep_default_group()


@atexit.register
def _end_with_the_process() -> None:
    """Ends the groups that a script has not ended, while the interpreter still lives.

    Otherwise Gloo's threads might free tensors after the interpreter's end. The threads would need Python's lock for
    that, and would abort the process. Ends no group if this module did not make the default group, or if the default
    group is not one of Gloo.
    """
    _C.let_threads_stay()
    if not _has_started_group() or dist.get_backend() != "gloo":
        return
    groups = weakref.WeakSet(dist.distributed_c10d._world.pg_map)
    thread = threading.Thread(target=dist.destroy_process_group, daemon=True)
    try:
        thread.start()
        thread.join(_END_S)
        has_ended = not thread.is_alive()  # if the thread is alive, it waits for a rank that does not come
    except RuntimeError:  # some versions of Python cannot start a thread at this point
        has_ended = False
    if not has_ended:
        _C.end_beside_threads()
    # Other objects still hold these groups. The end of the interpreter must not free the groups, because freeing a
    # group waits for its threads.
    for group in groups:
        _C.keep_forever(group)


def forget_stores() -> None:
    """Forgets the stores in a forked child, because they belong to the parent.

    Keeps the store objects forever. Freeing them would wait for threads that the child does not have.
    """
    global _started_group
    _started_group = None
    stores = [*_kept_stores.values(), *([_unused_group[1]] if _unused_group is not None else [])]
    for store in stores:
        _C.keep_forever(store)
    _kept_stores.clear()
    keep_default_group()


def _stay_on_loopback() -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError(f"MASTER_PORT is '{text}', expected 1 to 65535")
    return int(text)


def device_of_rank(local_rank: int) -> torch.device:
    """Returns the device of ``default_device()``, or the CPU if Accelerate was told to use the CPU."""
    on_host = os.environ.get("ACCELERATE_USE_CPU", "") == "true"
    return torch.device("cpu") if on_host else default_device(local_rank)


def default_device(local_rank: int) -> torch.device:
    """Makes the GPU number ``local_rank`` the current device, and returns it. Returns the CPU if there are no GPUs.

    Raises ValueError if there are too few GPUs.
    """
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return torch.device("cpu")
    gpus = torch.accelerator.device_count()
    if local_rank >= gpus:
        raise ValueError(
            f"local rank {local_rank} has no GPU of its own: this host shows {gpus} (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')!r}). Start at most {gpus} rank(s) on it. To share one, move "
            "the model to it and call torch.distributed.init_process_group('gloo') before zeroshard.initialize"
        )
    torch.accelerator.set_device_index(local_rank)
    return torch.device(kind.type, local_rank)


def _make_store(host: str, port: int, rank: int, world_size: int, timeout: timedelta) -> dist.Store:
    # The store does not wait for all clients, because a meeting does that, and reports the missing ranks.
    more = {"timeout": timeout, "wait_for_workers": False}
    if rank != 0 or host not in _LOOPBACK or "TORCHELASTIC_USE_AGENT_STORE" in os.environ:
        # If torchrun has set this variable to "True", its agent already serves the store at this address, and all ranks
        # are clients. Otherwise rank 0 serves the store, and the other ranks are clients.
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_master = rank == 0 and not agent
        if not is_master:
            _await_listener(host, port, rank, timeout)
        try:
            return dist.TCPStore(host, port, world_size, is_master=is_master, **more)
        except dist.DistError as error:
            if is_master:
                raise
            raise _C.CommError(
                f"rank {rank}: rank 0 served the store at {host}:{port} (MASTER_ADDR, MASTER_PORT) and does no more: "
                f"{error}"
            ) from error
    # TCPStore would listen on every interface, so this rank gives it a socket that is bound to the loopback interface.
    listener = socket.socket(socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise RuntimeError(f"port {port} of 127.0.0.1 (MASTER_PORT) cannot be used: {error.strerror}") from error
    listener.listen()
    fd = listener.detach()
    return dist.TCPStore("127.0.0.1", port, world_size, is_master=True, master_listen_fd=fd, **more)


def _await_listener(host: str, port: int, rank: int, timeout: timedelta) -> None:
    """Waits until a process listens at the address. Raises ``CommError`` at the time-out.

    c10d's own wait would check rarely and meanwhile ignore Ctrl-C.
    """
    begin, nap, reason = time.monotonic(), 0.001, "no time"
    while (left := timeout.total_seconds() - (time.monotonic() - begin)) > 0:
        try:
            with socket.create_connection((host, port), timeout=min(left, 10)) as connection:
                if connection.getsockname() != connection.getpeername():  # a socket can connect to itself
                    return
        except OSError as error:
            reason = error
        time.sleep(nap)
        nap = min(2 * nap, 0.05)
    raise _C.CommError(
        f"rank {rank}: rank 0 has not come within {timeout.total_seconds():g} s (zeroshard.timeout_s), so nobody "
        f"serves the store at {host}:{port}. Look for the first error of rank 0, and check MASTER_ADDR and "
        f"MASTER_PORT. The last attempt says: {reason}"
    )
