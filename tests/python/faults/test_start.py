"""Ranks that die, or do not come, while a job starts: whoever is left ends soon, and says who is missing."""

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time

import models
import pytest
import torch.distributed as dist
import world
import zeroshard
from built import ZEROSHARD, ZEROSHARD_TORCH, needs
from launched import (
    launch,
    script,  # noqa: F401 - a fixture
)
from zeroshard import _C, distributed, groups, making

pytestmark = pytest.mark.fault
DTYPES = ("fp32", "bf16", "fp16")
# Until then a rank is not known to the others: they can but wait, for `timeout_s`.
UNKNOWN = ["it looks for the store", "it has not yet come"]
KNOWN = [
    "it has come",
    "default group",
    "it has not come again",
    "first group",
    "second group",
    "third group",
    "the core is made",
    "units are made",
]


def die(*_args, **_kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(point):
    """From here on this process dies when it reaches `point`."""
    made = itertools.count(1)
    new_group = dist.new_group

    def die_at_group(number):
        return lambda *args, **kwargs: die() if next(made) == number else new_group(*args, **kwargs)

    owner, name, action = {
        "it looks for the store": (distributed, "_make_store", die),
        "it has not yet come": (distributed, "meet", die),
        "it has come": (_C.Meeting, "all_here", die),
        "default group": (dist, "init_process_group", die),
        "it has not come again": (groups, "meet", die),
        "first group": (dist, "new_group", die_at_group(1)),
        "second group": (dist, "new_group", die_at_group(2)),
        "third group": (dist, "new_group", die_at_group(3)),
        "the core is made": (_C, "Engine", die),
        "units are made": (making, "_tensors_of", lambda *_: die),
    }[point]
    setattr(owner, name, action)


def initialize(stage=3, dtype="fp32", transport="auto", waits_s=60):
    own = {"timeout_s": waits_s, "transport": transport}
    config = models.configuration(stage, dtype, optimizer=models.adamw(1e-3), zeroshard=own)
    return zeroshard.initialize(model=models.stack(), config=config)[0]


def start(point, victim, **settings):
    if world.rank() == victim:
        die_at(point)
    initialize(**settings)


def check_death(point, size, victim, stage, dtype, transport):
    """Whoever is left names the rank, within seconds of its death if it had come before."""
    case = (point, size, victim, stage, dtype, transport)
    # Rank 0 may have died before others could find its store.
    waits_s = 3 if point in UNKNOWN or (point == "it has come" and victim == 0) else 60
    settings = {"stage": stage, "dtype": dtype, "transport": transport, "waits_s": waits_s}
    ranks = world.run_ranks(size, start, point=point, victim=victim, timeout_s=50, **settings)
    for rank in ranks:
        if rank.rank == victim:
            assert rank.exit_code == -signal.SIGKILL, (case, rank.log)
        else:
            assert rank.exit_code == 1 and re.search(rf"\brank {victim}\b", rank.error or ""), (case, rank.log)
            # torch tries for 10 s to reach a store that nobody serves, on a busy machine twice; a silent wait is of 60.
            assert rank.seconds < 40, case


@pytest.mark.row("K9")
@pytest.mark.parametrize("point", [*UNKNOWN, *KNOWN])
def test_a_rank_that_is_killed_while_the_job_starts_is_named(point, release):
    """At 2 to 4 ranks, each of them; where parameters matter at all stages, in all dtypes; over both transports."""
    matters = point == "units are made"
    settings = list(itertools.product(range(4), DTYPES, ["auto", "process_group"]))
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    rng.shuffle(settings)
    cases = [(size, victim) for size in (2, 3, 4) for victim in range(size)]
    for size, victim in cases if release else [rng.choice(cases)]:
        for stage, dtype, transport in settings if release and matters else settings[:1]:
            check_death(point, size, victim, stage, dtype, transport)


def start_alone(point):
    die_at(point)
    initialize()


@pytest.mark.row("K9")
def test_a_single_rank_is_killed():
    for point in ("default group", "the core is made"):
        (rank,) = world.run_ranks(1, start_alone, point=point, timeout_s=30)
        assert rank.exit_code == -signal.SIGKILL
    assert world.run(1, train_alone) == [True]


def train_alone():
    engine = initialize()
    dist.barrier()
    return engine.world_size() == 1 and dist.is_initialized()


def stay_away(absent):
    if world.rank() in absent:
        return None  # with exit code 0
    begin = time.monotonic()
    with pytest.raises(_C.CommError) as raised:
        initialize(waits_s=2)
    return str(raised.value), time.monotonic() - begin


@pytest.mark.row("K9")
@pytest.mark.parametrize("absent", [[0], [2], [1, 2]])
def test_ranks_that_never_come_are_named(absent):
    """One timeout, zeroshard.timeout_s, bounds it, and says which ranks came and which did not."""
    answers = world.run(3, stay_away, absent=absent, timeout_s=50)
    for text, seconds in filter(None, answers):
        assert seconds < 12
        if absent == [0]:
            assert re.search(r"rank 0 has not come within 2 s .* nobody serves the store at 127.0.0.1:\d+", text)
        else:
            missing, verb = ("rank 2", "has") if absent == [2] else ("ranks 1, 2", "have")
            came = "ranks 0, 1" if absent == [2] else "rank 0"
            assert f"of 3 ranks, {missing} {verb} not come within 2 s (zeroshard.timeout_s); {came} came" in text


INITIALIZE = """
import torch, zeroshard
config = {'train_micro_batch_size_per_gpu': 2, 'optimizer': {'type': 'Adam'}}
zeroshard.initialize(model=torch.nn.Linear(4, 4), config=config)
"""


@pytest.mark.row("K9")
@needs(ZEROSHARD)
def test_the_launcher_names_a_rank_that_ends_well_before_it_has_come(script):
    """Of those that wait none is left after seconds; and nothing starts again without need."""
    process = launch("--nproc", "3", script("if rank == 1: sys.exit(0)\n" + INITIALIZE))
    begin = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert time.monotonic() - begin < 40  # most of it to load torch
    text = r"rank 1 \(pid \d+ on host \S+\) ended with exit code 0 after \S+ s and never came to where rank [02] waits"
    assert re.search(text, err.decode()), err


@pytest.mark.row("K9")
@needs(ZEROSHARD_TORCH)
def test_ranks_of_zeroshard_train_name_one_that_never_comes(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        '{"train_batch_size": 4, "zeroshard": {"timeout_s": 2}, "optimizer": {"type": "Adam"},'
        f' "train": {{"model": "{tmp_path}/none", "output": "{tmp_path}/out", "steps": 1,'
        f' "data": {{"train": ["{tmp_path}/none.npy"], "length": 8}}}}}}'
    )
    port, claim = world.reserve_port()
    for rank, text in ((0, r"of 2 ranks, rank 1 has not come within 2 s .*; rank 0 came"), (1, "rank 0 has not come")):
        variables = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "MASTER_PORT": str(port)}
        command = [ZEROSHARD, "train", config]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and re.search(text, done.stderr), done.stderr
    claim.close()


@pytest.mark.row("K9")
def test_an_interpreter_ends_in_good_order_after_the_error(tmp_path):
    """With code 1, though what connects ranks still runs in a thread."""
    program = tmp_path / "train.py"
    program.write_text(
        "import os, signal, sys, torch, zeroshard\nimport torch.distributed as dist\n"
        "def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\n"
        "if os.environ['RANK'] == '1': dist.init_process_group = die\n"
        "zeroshard.initialize(model=torch.nn.Linear(4, 4), config={'train_micro_batch_size_per_gpu': 2,"
        " 'optimizer': {'type': 'Adam'}})\n"
    )
    port, claim = world.reserve_port()
    ranks = []
    for rank in range(3):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "MASTER_PORT": str(port)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen([sys.executable, program], env=os.environ | variables, **pipes))
    told = [rank.communicate(timeout=60)[0] for rank in ranks]
    claim.close()
    assert [rank.returncode for rank in ranks] == [1, -signal.SIGKILL, 1], told
    assert all(re.search(r"CommError: rank [02]: rank 1 \(pid \d+\) died", told[rank]) for rank in (0, 2)), told


GOES_ON = """
import atexit, functools, sys
atexit.register(print, "the first handler")
import torch.distributed as dist, zeroshard
from zeroshard import meeting
file = open(sys.argv[1], "w")
file.write("whole")
store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
client = dist.TCPStore("127.0.0.1", store.port, None, False)

class Meeting:
    retried = False
    def check(self, what): raise zeroshard.CommError("rank 1 died")
    def leave(self, reason): pass

class Wakes:  # the thread, once the interpreter has ended
    def __init__(self, thread):
        self.set, self.open = store.set, open
        self.calls = f"/proc/self/task/{thread.native_id}/syscall"
    def __del__(self):
        def call():
            with self.open(self.calls) as file: return file.read().split()[0]
        before = call()
        self.set("text", "arrives")
        for _ in range(10000):
            if call() not in (before, "running"): break

try:
    # Nothing of this module, which the thread would keep from its end.
    meeting.while_all_live(Meeting(), "groups", functools.partial(client.get, "text"), undo=print)
except zeroshard.CommError:
    wakes = Wakes(meeting._connecting[0])
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.row("K9")
@pytest.mark.parametrize("code", [0, 7])
def test_an_interpreter_that_went_on_ends_as_it_wants_to(tmp_path, code):
    """What else waits for its end is done, though a thread comes back from torch when it is over."""
    command = [sys.executable, "-c", GOES_ON, tmp_path / "file", str(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, "the first handler\n"), done
    assert (tmp_path / "file").read_text() == "whole"


def on_a_store_that_lives_on(port, job):
    store = dist.PrefixStore(job, dist.TCPStore("127.0.0.1", port, None, False))
    dist.init_process_group("gloo", store=store, rank=world.rank(), world_size=world.size())
    config = {"train_micro_batch_size_per_gpu": 1, "zeroshard": {"timeout_s": 30}}
    if world.rank() == 1:
        time.sleep(1)  # rank 0 waits meanwhile, and looks at whom it knows
    return zeroshard.initialize(model=models.stack(), config=config)[0].parameter_digest()


def test_jobs_that_share_a_store_by_prefixes_do_not_meet():
    """One after the other: the ranks of the first are gone."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    for job in ("first", "second"):
        assert len(set(world.run(2, on_a_store_that_lives_on, port=store.port, job=job))) == 1
