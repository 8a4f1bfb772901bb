"""A rank that gives up while ranks come together: the others learn it at once, and a try of all begins anew."""

import itertools
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
import world
import zeroshard
from test_start import initialize
from waiting import wait_for
from zeroshard import _C, distributed, groups

pytestmark = pytest.mark.fault
PLACES = [
    "it comes",
    "others are waited for",
    "default group",
    "it comes again",
    "others are waited for again",
    "groups",
]


def give_up():
    raise KeyboardInterrupt


def give_up_at(place):
    """The first time that this rank reaches `place` it is interrupted, as by Ctrl-C. Where it waits inside of torch,
    what it waits for happens after that."""
    made, original = itertools.count(), {"all_here": _C.Meeting.all_here, "check": _C.Meeting.check}
    again = "again" in place

    if place in ("it comes", "it comes again"):
        owner = groups if again else distributed
        meet = owner.meet
        owner.meet = lambda *args: give_up() if next(made) == 0 else meet(*args)
    elif place.startswith("others"):
        seen = []

        def all_here(meeting):
            if meeting.number not in seen:
                seen.append(meeting.number)
                if len(seen) == (2 if again else 1):
                    give_up()
            return original["all_here"](meeting)

        _C.Meeting.all_here = all_here
    else:
        interrupted = threading.Event()
        name = "new_group" if place == "groups" else "init_process_group"
        connect = getattr(dist, name)

        def waits(*args, **kwargs):
            interrupted.wait()
            return connect(*args, **kwargs)

        def check(meeting, what):
            if not interrupted.is_set() and what == (
                "process groups" if place == "groups" else "the default process group"
            ):
                interrupted.set()
                give_up()
            return original["check"](meeting, what)

        setattr(dist, name, waits)
        _C.Meeting.check = check


def tries(victim, place, stage, transport):
    """Tries until it succeeds, keeping every error with all that it refers to."""
    if world.rank() == victim:
        give_up_at(place)
    errors = []
    while True:
        try:
            engine = initialize(stage=stage, transport=transport)
            break
        except (_C.CommError, KeyboardInterrupt) as error:
            errors.append(error)
            assert len(errors) < 4, errors
    digest = engine.parameter_digest()
    return [f"{type(error).__name__}: {error}" for error in errors], digest


@pytest.mark.row("K9")
@pytest.mark.parametrize("place", PLACES)
def test_a_try_of_all_ranks_succeeds_after_one_gave_up(place, release):
    size = 3
    for victim in range(size) if release else [PLACES.index(place) % size]:
        transport = ["auto", "process_group"][victim % 2]
        begin = time.monotonic()
        answers = world.run(size, tries, victim=victim, place=place, stage=3, transport=transport)
        assert time.monotonic() - begin < 40  # of the 60 s that a rank waits for others
        assert len({digest for _, digest in answers}) == 1
        assert answers[victim][0][0] == "KeyboardInterrupt: ", answers
        for rank, (errors, _) in enumerate(answers):
            if rank != victim and "others" in place and errors:  # else it came later
                assert f"rank {victim} left before all ranks were connected (KeyboardInterrupt)" in errors[0], answers


def come_late(folder):
    """Rank 0 gives up after a second, and keeps its error; rank 1 comes after that."""
    if world.rank() == 0:
        with pytest.raises(_C.CommError, match=r"rank 1 has not come within 1 s") as kept:
            zeroshard.init_distributed("cpu", timedelta(seconds=1))
        with pytest.raises(_C.CommError, match=r"rank 1 has not come within 1 s"):
            zeroshard.init_distributed("cpu", timedelta(seconds=1))
        (Path(folder) / "tried").touch()
        assert kept is not None
    else:
        wait_for((Path(folder) / "tried").exists, "rank 0 to have tried", seconds=60)
    return initialize().parameter_digest()


@pytest.mark.row("K9")
def test_a_rank_whose_time_is_over_tries_again(tmp_path):
    """Alone it ends as before; when the other has come they meet."""
    assert len(set(world.run(2, come_late, folder=str(tmp_path)))) == 1
