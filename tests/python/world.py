"""Worlds of real processes, one per rank, for tests.

A rank is a fork of one server process that has torch, transformers and zeroshard loaded, so a world starts in about a
tenth of a second. Ranks find each other over a free loopback port, as under a launcher.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import gc
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import owners

if TYPE_CHECKING:
    import torch

TIMEOUT_S = 60.0
allows_idle_ranks = False  # whether some rank may own nothing of a model of the test that runs now
_PR_SET_PDEATHSIG = 1
_device: torch.device | None = None  # of this rank, if that is not the CPU
_LAUNCHER_VARIABLES = re.compile(r"^((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|MASTER_|TORCHELASTIC|OMPI_|PMI_|SLURM_)")


@dataclass
class Rank:
    """What became of one rank."""

    rank: int
    pid: int
    exit_code: int  # negative: the signal that ended it
    value: Any  # what the case returned, or None
    error: str | None  # "Type: message", when the case raised
    log: str  # stdout and stderr together
    seconds: float  # from the start of the world to the end of the rank


class World:
    """`world_size` processes that run `case(**kwargs)`, a function of a test module; results come back as JSON.

    `on`: the schedule by which each rank's simulated device runs ("eager", "late" or "lazy"), or "cuda": the first GPU,
    which several ranks share; None: ranks have the CPU.
    """

    def __init__(self, world_size: int, case: Callable, *, on: str | None = None, **kwargs: Any) -> None:
        context = _server()
        port, self._port_claim = reserve_port()
        self._started = time.monotonic()
        self._ended: dict[int, float] = {}
        self._logs = []
        self._pipes = []
        self.processes = []
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            log = tempfile.NamedTemporaryFile(prefix=f"zeroshard-rank{rank}-", suffix=".log")  # noqa: SIM115
            environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            watches = world_size > 1 and not allows_idle_ranks
            args = (environment, log.name, sender, case, kwargs, on, watches)
            process = context.Process(target=_rank_main, args=args, daemon=True)
            process.start()
            sender.close()
            self._logs.append(log)
            self._pipes.append(receiver)
            self.processes.append(process)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def log(self, rank: int) -> str:
        with open(self._logs[rank].name, errors="replace") as file:
            return file.read()

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Returns when every rank has written `text` to its log."""
        deadline = time.monotonic() + seconds
        while not all(text in self.log(rank) for rank in range(len(self.processes))):
            assert time.monotonic() < deadline, f"waited {seconds} s for {text!r}: {self._all_logs()}"
            assert all(p.is_alive() for p in self.processes), f"a rank ended before {text!r}: {self._all_logs()}"
            time.sleep(0.01)

    def join(self, timeout_s: float = TIMEOUT_S, among: list[int] | None = None) -> None:
        """Waits for all ranks, or those of `among`. Kills the world and fails when they take longer.

        It also fails when some rank owns nothing of a model that was sharded; see owners.py.
        """
        left = {self.processes[rank].sentinel: rank for rank in among or range(len(self.processes))}
        deadline = time.monotonic() + timeout_s
        values = getattr(self, "_values", {})
        self._values = values
        pipes = {self._pipes[rank]: rank for rank in left.values() if rank not in values}
        while left:
            ready = wait([*left, *pipes], timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                late = sorted(left.values())
                self.kill()
                raise AssertionError(f"rank(s) {late} still ran after {timeout_s} s: {self._all_logs()}")
            for one in ready:
                if one in pipes:
                    rank = pipes.pop(one)
                    with contextlib.suppress(EOFError):
                        values[rank] = json.loads(one.recv_bytes())
                else:
                    self._ended[left.pop(one)] = time.monotonic() - self._started
        for rank in among or range(len(self.processes)):
            owners.check(self.log(rank))

    def results(self, timeout_s: float = TIMEOUT_S) -> list[Rank]:
        self.join(timeout_s)
        ranks = []
        for rank, process in enumerate(self.processes):
            process.join()
            answer = self._values.get(rank, {})
            exit_code = process.exitcode
            log = self.log(rank)
            ranks.append(
                Rank(rank, process.pid, exit_code, answer.get("value"), answer.get("error"), log, self._ended[rank])
            )
            self._logs[rank].close()
            self._pipes[rank].close()
        self._port_claim.close()
        return ranks

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()

    def _all_logs(self) -> str:
        return "".join(f"\n--- rank {rank} ---\n{self.log(rank)[-3000:]}" for rank in range(len(self.processes)))


def run(world_size: int, case: Callable, *, timeout_s: float = TIMEOUT_S, **kwargs: Any) -> list[Any]:
    """As World: what `case(**kwargs)` returned on each rank. Fails, with every rank's log, when it raised on any."""
    ranks = run_ranks(world_size, case, timeout_s=timeout_s, **kwargs)
    bad = [rank for rank in ranks if rank.exit_code != 0 or rank.error]
    if bad:
        logs = "".join(f"\n--- rank {rank.rank}: exit code {rank.exit_code} ---\n{rank.log[-4000:]}" for rank in bad)
        raise AssertionError(f"{case.__name__}({kwargs}) failed on rank(s) {[rank.rank for rank in bad]}:{logs}")
    return [rank.value for rank in ranks]


def run_ranks(world_size: int, case: Callable, *, timeout_s: float = TIMEOUT_S, **kwargs: Any) -> list[Rank]:
    """As run(), but ranks may fail."""
    world = World(world_size, case, **kwargs)
    try:
        return world.results(timeout_s)
    finally:
        world.kill()


def rank() -> int:
    """On a rank: which."""
    return int(os.environ["RANK"])


def size() -> int:
    """On a rank: of how many."""
    return int(os.environ["WORLD_SIZE"])


@functools.cache
def _server() -> multiprocessing.context.BaseContext:
    """The forking server's context. The server has loaded everything: no world's time counts that."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preload"])
    here = os.path.dirname(os.path.abspath(__file__))
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in known:  # the server does not take over sys.path, and ignores what it cannot import
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, known)])
    first = context.Process(target=os.getpid)
    first.start()
    first.join()
    return context


def reserve_port() -> tuple[int, socket.socket]:
    """A loopback port on which nobody listens, and what keeps it from other worlds while it is open.

    Not one that the system gives to whoever asks for any: rank 0 listens later, and another process may be faster.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        end = int(file.read().split()[0])
    while True:
        port = random.SystemRandom().randrange(end - 16384, end)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0zeroshard-tests-port-{port}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
            return port, claim
        except OSError as error:
            claim.close()
            if error.errno != errno.EADDRINUSE:
                raise


def device() -> torch.device:
    """On a rank: its own, the CPU, the simulated one or a GPU."""
    import torch

    return _device or torch.device("cpu")


@contextlib.contextmanager
def _placed(on: str | None) -> Iterator[None]:
    global _device
    if on is None:
        yield
        return
    import simulated

    if on == "cuda":
        import devices

        with devices.use("cuda", shared=size() > 1) as _device:
            yield
        return
    with simulated.device(simulated.Schedule[on.upper()]) as _device:
        yield


def _rank_main(
    environment: dict, log: str, pipe: Any, case: Callable, kwargs: dict, on: str | None, watches: bool
) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlives the server, and so never the tests
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    for name in [name for name in os.environ if _LAUNCHER_VARIABLES.search(name)]:
        del os.environ[name]
    os.environ.update({name: str(value) for name, value in environment.items()})
    import torch

    # Before other threads compute: of several at once, one would find no pool of threads in a forked process.
    torch.set_num_threads(torch.get_num_threads())
    if watches:
        owners.watch(log)
    code = 1
    try:
        with _placed(on):
            answer = {"value": case(**kwargs)}
    except BaseException as error:  # noqa: BLE001 (reported, and the exit code tells)
        traceback.print_exc()
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            code = error.code
        answer = {"error": f"{type(error).__name__}: {error}"}
        traceback.clear_frames(error.__traceback__)
    pipe.send_bytes(json.dumps(answer).encode())
    gc.collect()
    import torch.distributed as dist

    if "error" in answer:
        sys.stderr.flush()
        os._exit(code)  # as an interpreter that ends with an exception, without waiting for peers
    if dist.is_initialized():
        dist.destroy_process_group()
