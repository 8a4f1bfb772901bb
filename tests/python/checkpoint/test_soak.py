"""A long job that is killed again and again holds no more memory, files, threads or disk at its end."""

import json
import os
import random
import re
import signal
import subprocess
import threading
import time

import pytest
import soak_job
import world
from built import ZEROSHARD, needs
from launched import alive, launch, supervisor_of
from leftovers import nothing_left  # noqa: F401 - a fixture

pytestmark = [needs(ZEROSHARD), pytest.mark.fault]
RANKS, KEEP = 2, 2
WARM = 6  # saves until each allocator has what it needs
GROWTH_KIB = 1024  # 0.4 % of what a rank holds, and less than what 40 copies of its state need
ONCE_KIB = 4096  # an allocator may take that at any time, once


class Watch(threading.Thread):
    """Looks at the directory of checkpoints, and at the launcher's two processes, all the time."""

    def __init__(self, folder, process):
        super().__init__(daemon=True)
        self.folder, self.ended = folder, threading.Event()
        self.process = process
        self.checkpoints = self.temporary = 0
        self.looks = 0
        self.held = []  # [resident KiB, open files, threads] of both
        self.start()

    def run(self):
        while not self.ended.wait(0.002):
            names = os.listdir(self.folder)
            self.checkpoints = max(self.checkpoints, sum(name.startswith("global_step") for name in names))
            self.temporary = max(self.temporary, sum(name.startswith((".tmp-", ".trash-")) for name in names))
            self.looks += 1

    def note_launcher(self):
        self.held.append([soak_job.holds(pid) for pid in (self.process.pid, supervisor_of(self.process))])


def now(notes, rank):
    """(life, pid, step) of a rank; a life begins with a restart."""
    try:
        return tuple(int(word) for word in (notes / f"rank-{rank}.now").read_text().split())
    except (FileNotFoundError, ValueError):
        return None


def kill_at(process, notes, life, step, generator):
    """Kills a rank soon after it has done `step` in its `life`."""
    victim = generator.randrange(RANKS)
    deadline = time.monotonic() + 300
    while True:
        found = now(notes, victim)
        if found and found[0] == life and found[2] >= step:
            break
        assert process.poll() is None, "the job ended before its time"
        assert time.monotonic() < deadline, (life, step, found)
        time.sleep(0.001)
    time.sleep(generator.uniform(0, 0.03))  # a step and a save take about so long
    os.kill(found[1], signal.SIGKILL)


def steady_growth(resident):
    """What grows all the time: three times the least growth of the three thirds.

    The step of an allocator is in some of them, a leak is in all.
    """
    if len(resident) < 4:
        return 0
    at = [resident[(len(resident) - 1) * third // 3] for third in range(4)]
    return 3 * min(after - before for before, after in zip(at, at[1:], strict=False))


def test_steady_growth_is_that_of_a_leak():
    step = [165159, 165167, 165197, 165293, 165557, 165837, 166109, 166389, 166669, *[166685] * 5]
    leak = [165159 + 100 * save for save in range(14)]
    assert steady_growth(step) <= 100
    assert steady_growth(leak) > GROWTH_KIB
    assert steady_growth(leak[:3]) == 0


def check_growth(lives):
    """A rank's [life, step, KiB, open files, threads], noted before each save."""
    held, measured = set(), 0
    for life in {note[0] for note in lives}:
        notes = [note for note in lives if note[0] == life]
        print(life, [note[2] for note in notes])
        held |= {tuple(note[3:]) for note in notes[1:]}  # the first save starts a thread
        resident = [note[2] for note in notes][WARM:]
        measured += len(resident)
        assert steady_growth(resident) <= GROWTH_KIB, (life, resident)
        assert max(resident, default=0) <= sum(resident[:1]) + ONCE_KIB, (life, resident)
    assert len(held) == 1, f"open files or threads came or went: {lives}"
    assert measured >= 10, lives


@pytest.mark.row("O1")
def test_a_long_job_that_is_killed_again_and_again(tmp_path, release):
    steps, every, kills = (10_000, 50, 20) if release else (800, 20, 2)
    seed = random.SystemRandom().randrange(10**6)
    generator = random.Random(seed)
    print(f"seed {seed}")
    folder, notes = tmp_path / "run", tmp_path / "notes"
    folder.mkdir()
    notes.mkdir()
    arguments = [str(folder), str(notes), *map(str, (steps, every, KEEP))]
    with open(tmp_path / "err", "wb") as err:
        process = launch(
            *("--nproc", str(RANKS), "--max-restarts", str(kills), soak_job.__file__, *arguments),
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
        watch = Watch(folder, process)
        try:
            # The last life is long enough to grow.
            at = sorted(generator.sample(range(every, steps * 6 // 10), kills))
            for life, step in enumerate(at):
                kill_at(process, notes, life, step, generator)
                watch.note_launcher()
            process.wait(timeout=300)
        finally:
            process.kill()
            process.wait()
            watch.ended.set()
            watch.join()
    said = (tmp_path / "err").read_text()
    assert process.returncode == 0, said
    restarts = re.findall(r"rank \d was killed by SIGKILL: restart (\d+) of \d+ begins", said)
    assert restarts == [str(number) for number in range(1, kills + 1)], said
    reported = [int(step) for step in re.findall(r"job failed: .* killed by SIGKILL .*, last step (\d+)\n", said)]
    assert len(reported) == kills and all(map(int.__ge__, reported, at)), (reported, at)
    expected = world.run(RANKS, soak_job.undisturbed, steps=steps, timeout_s=600)
    for rank in range(RANKS):
        assert json.loads((notes / f"rank-{rank}.end").read_text()) == expected[rank]
        check_growth([json.loads(line) for line in (notes / f"rank-{rank}.holds").read_text().splitlines()])
        assert not alive(now(notes, rank)[1])
    print(f"launcher: {watch.held}")
    assert watch.looks > 100
    assert watch.checkpoints <= KEEP + 1
    assert watch.temporary <= 1
    newest = {f"global_step{step}" for step in (steps - every, steps)}
    assert set(os.listdir(folder)) == {*newest, "latest"}
    for first, last in zip(watch.held[0], watch.held[-1], strict=True):
        assert last[1:] == first[1:] and last[0] <= first[0] + GROWTH_KIB, watch.held
