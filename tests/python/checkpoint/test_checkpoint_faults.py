"""Crashes around checkpoints: whatever dies and whenever, what is on disk is the old or the new checkpoint, whole."""

import contextlib
import itertools
import os
import random
import re
import shutil
import statistics
import subprocess
import time

import pytest
import strace
import world
from built import ZEROSHARD, needs
from checkpointed import facts, make, seed, train
from leftovers import nothing_left  # noqa: F401 - a fixture
from waiting import wait_for

pytestmark = pytest.mark.fault
END_S = 10  # after a death every other rank has ended by then
TYPICAL_END_S = 2  # and in half of all cases by then
STEPS, EVERY, KEEP = 18, 3, 2


def train_and_save(folder, stage, asynchronous, steps=STEPS):
    """Goes on from what is in `folder`, if anything, to `steps`."""
    engine = make(stage, timeout_s=8, stall_timeout_s=3, checkpoint={"async": asynchronous, "keep": KEEP})
    seed(engine)
    if folder is not None:
        engine.load_checkpoint(folder)
    first, losses = engine.global_steps, []
    print(f"step {first}.", flush=True)
    while engine.global_steps < steps:
        losses += train(engine, 1)
        print(f"step {engine.global_steps}.", flush=True)
        if folder is not None and engine.global_steps % EVERY == 0:
            engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    return [first, losses, facts(engine)]


# -- a rank dies at a random moment ------------------------------------------------------------------------------------


def last_step(log):
    return max((int(step) for step in re.findall(r"step (\d+)\.", log)), default=-1)


def kill_a_rank(ranks, folder, stage, asynchronous, generator):
    """Kills a random rank at a random moment. How long the others lived, and the step that was safe by then; or None
    when the run had ended before."""
    victim, at = generator.randrange(ranks), generator.randrange(STEPS - 2)
    trained = world.World(ranks, train_and_save, folder=folder, stage=stage, asynchronous=asynchronous)
    try:
        deadline = time.monotonic() + 40
        while last_step(trained.log(victim)) < at and trained.processes[victim].is_alive():
            assert time.monotonic() < deadline, trained.log(victim)
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.04))
        trained.processes[victim].kill()
        died = time.monotonic()
        trained.join(END_S)
        took = time.monotonic() - died
        ends = trained.results()
    finally:
        trained.kill()
    if ends[victim].exit_code == 0:
        return None
    assert took < END_S
    assert not any(os.path.exists(f"/proc/{pid}") for pid in trained.pids)
    # A rank that had nothing left to ask of the dead one may have ended well: only after the last step.
    late = f"step {STEPS}." in ends[victim].log
    for end in ends:
        assert end.exit_code != 0 or late, (victim, end)
    # The save that follows a step may not have begun, and waits for the one before it.
    begun = max(last_step(ends[victim].log) - 1, 0) // EVERY * EVERY
    return took, begun - EVERY if asynchronous else begun


@pytest.fixture(scope="module")
def uninterrupted():
    """By number of ranks: what a run gives that nothing stops."""
    known = {}

    def find(ranks):
        if ranks not in known:
            known[ranks] = world.run(ranks, train_and_save, folder=None, stage=0, asynchronous=False)
        return known[ranks]

    return find


@pytest.mark.row("K1")
def test_a_run_that_was_killed_goes_on_bit_by_bit(tmp_path, release, uninterrupted):
    first_seed = random.SystemRandom().randrange(10**6)
    resumed, took = set(), []
    for index in itertools.count():
        if len(took) >= (200 if release else 10):
            break
        assert index < 2 * len(took) + 10, "most runs had ended before they were killed"
        generator = random.Random(first_seed + index)
        ranks, stage, asynchronous = 3 + index % 2, index % 4, generator.random() < 0.7
        folder = str(tmp_path / str(index))
        arguments = {"folder": folder, "stage": stage, "asynchronous": asynchronous}
        print(f"seed {first_seed + index}: {ranks} ranks, {arguments}")
        safe = 0
        for _ in range(generator.choice([1, 2])):  # a second time after it has gone on
            if death := kill_a_rank(ranks, folder, stage, asynchronous, generator):
                took.append(death[0])
                safe = max(safe, death[1])
        for end, whole in zip(world.run(ranks, train_and_save, **arguments), uninterrupted(ranks), strict=True):
            start, losses, found = end
            assert start % EVERY == 0 and start >= safe, (start, safe)
            assert losses == whole[1][start:]
            assert found == whole[2]
            resumed.add(start)
        if start < STEPS:  # it has saved again, and so cleaned up
            newest = [f"global_step{step}" for step in (STEPS - EVERY, STEPS)]
            assert sorted(os.listdir(folder)) == [*sorted(newest), "latest"], "something was left behind"
        shutil.rmtree(folder)
    assert resumed != {0}, "no run was far enough to leave a checkpoint"
    print(f"{len(took)} deaths; the others ended after {statistics.median(took):.2f} s, at most {max(took):.2f} s")
    assert statistics.median(took) < TYPICAL_END_S, took


# -- a rank dies at a system call of a save ----------------------------------------------------------------------------

CALLS = "openat,openat2,pwrite64,fdatasync,fsync,rename,renameat,renameat2,mkdir,mkdirat,unlinkat,ftruncate,fallocate"


def writer_of(engine, folder):
    """The thread that writes this rank's checkpoints."""
    before = set(os.listdir("/proc/self/task"))
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()

    def writer():  # who has ended stays listed for a moment
        new = set(os.listdir("/proc/self/task")) - before
        return new.pop() if len(new) == 1 else None

    return wait_for(writer, "one more thread")


def tell_and_wait(writer, folder):
    print(f"writer {writer}.", flush=True)
    wait_for(lambda: os.path.exists(folder + ".go"), "the test", seconds=60)


def writer_said(saving, rank):
    """What tell_and_wait() told."""
    return int(re.search(r"writer (\d+)\.", saving.log(rank))[1])


def save_when_told(folder, tag, keep, asynchronous):
    """One more step than what is in `folder`, saved under `tag`; nothing but the save happens between go and end."""
    engine = make(2, timeout_s=8, stall_timeout_s=3, checkpoint={"async": asynchronous, "keep": keep})
    engine.load_checkpoint(folder)
    train(engine, 1)
    tell_and_wait(writer_of(engine, folder + "-first") if asynchronous else os.getpid(), folder)
    engine.save_checkpoint(folder, tag=tag)
    engine.wait_for_checkpoint()
    os._exit(0)


def load_and_tell(folder):
    engine = make(1)
    train(engine, 1)
    path, _ = engine.load_checkpoint(folder)
    return [os.path.basename(path), facts(engine)]


def write_first(folder, tag):
    """A checkpoint of two steps; the facts then, and after the next step."""
    engine = make(2, checkpoint={"async": False})
    seed(engine)
    train(engine, 2)
    engine.save_checkpoint(folder, tag=tag)
    before = facts(engine)
    train(engine, 1)
    return [before, facts(engine)]


def traced_save(folder, tag, keep, asynchronous, victim, *options):
    """The lines of the trace of the system calls of `victim`'s thread that writes, and the exit codes of the ranks."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder + ".go")
    saved = world.World(2, save_when_told, folder=folder, tag=tag, keep=keep, asynchronous=asynchronous)
    try:
        saved.wait_for("writer ")
        with strace.attached(writer_said(saved, victim), CALLS, *options) as trace:
            with open(folder + ".go", "w"):
                pass
            died = time.monotonic()
            saved.join(END_S)
            assert time.monotonic() - died < END_S
        return trace(), [end.exit_code for end in saved.results()]
    finally:
        saved.kill()


def verified(path):
    command = [ZEROSHARD, "checkpoint", "verify", path]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@needs(ZEROSHARD)
@pytest.mark.row("K2", "K3")
@pytest.mark.parametrize(
    ("old", "new", "asynchronous"), [("first", "second", False), ("same", "same", False), ("first", "second", True)]
)
def test_death_at_every_system_call_of_a_save(tmp_path, release, old, new, asynchronous):
    strace.require()
    template, folder = str(tmp_path / "template"), str(tmp_path / "work")
    expected = world.run(2, write_first, folder=template, tag=old)
    steps = {expected[0][0][3]: 0, expected[0][1][3]: 1}  # global_steps -> before or after

    def attempt(victim, *options):
        for left in (folder, folder + "-first"):
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(template, folder)
        return traced_save(folder, new, 1, asynchronous, victim, *options)

    outcomes, attempts, kills = set(), 0, 0
    for victim in (0, 1):
        lines, codes = attempt(victim)
        assert codes == [0, 0] and len(lines) > 10, lines
        stride = 1 if release else max(1, len(lines) // 5)
        start = 1 if release else random.SystemRandom().randrange(1, stride + 1)
        for at in range(start, len(lines) + 1, stride):
            where = f"rank {victim}, call {at} of {len(lines)}: {lines[at - 1]}"
            name = lines[at - 1].split("(")[0]  # strace counts each call by itself
            count = sum(line.startswith(name + "(") for line in lines[:at])
            _, codes = attempt(victim, "-e", f"inject={name}:signal=SIGKILL:when={count}")
            assert codes[victim] == -9 or codes == [0, 0], (where, codes)
            attempts, kills = attempts + 1, kills + (codes[victim] == -9)
            ends = world.run(2, load_and_tell, folder=folder)
            which = {steps[found[3]] for _, found in ends}
            assert len(which) == 1 and len({tag for tag, _ in ends}) == 1, (where, ends)
            after = which.pop()
            assert after or codes != [0, 0], where
            assert ends[0][0] == (new if after else old), where
            assert [found for _, found in ends] == [facts[after] for facts in expected], where
            outcomes.add(after)
            check = verified(os.path.join(folder, ends[0][0]))
            assert check.returncode == 0, (where, check)
    # A rank that waits looks at the other in /proc, now and then: a number of calls may not be reached once more.
    assert kills > attempts / 2
    assert not release or outcomes == {0, 1}


# -- saves that lag or fail while training goes on ---------------------------------------------------------------------


def save_twice(folder, wait):
    engine = make(2)
    seed(engine)
    train(engine, 1)
    tell_and_wait(writer_of(engine, folder), folder)
    for _ in range(2):
        train(engine, 1)
        engine.save_checkpoint(folder)
        if wait:
            engine.wait_for_checkpoint()
    engine.wait_for_checkpoint()


@pytest.mark.row("D4")
@pytest.mark.parametrize("slow", [False, True])
def test_a_save_that_waits_for_a_slow_disk_is_told(tmp_path, slow):
    """The disk of rank 1 takes 0.4 s more for each file."""
    strace.require()
    folder = str(tmp_path / "run")
    saved = world.World(2, save_twice, folder=folder, wait=not slow)
    try:
        saved.wait_for("writer ")
        options = ["-e", "inject=fdatasync:delay_enter=400000"] if slow else []
        with strace.attached(writer_said(saved, 1), "fdatasync", *options):
            with open(folder + ".go", "w"):
                pass
            ends = saved.results()
    finally:
        saved.kill()
    assert [end.exit_code for end in ends] == [0, 0], ends
    waits = [line for end in ends for line in end.log.splitlines() if "for the checkpoint before to be written" in line]
    assert len(waits) == slow, [end.log for end in ends]
    assert sorted(os.listdir(folder)) == ["global_step1", "global_step2", "global_step3", "latest"]


def fail_to_save(folder, saves):
    """Six steps; after the second and the fourth a save to what is no directory."""
    engine = make(2, checkpoint={"on_error": "warn"})
    seed(engine)
    losses = []
    for step in range(6):
        losses += train(engine, 1)
        if saves and step in (1, 3):
            engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()
    return [losses, facts(engine)]


@pytest.mark.row("D1", "D4")
def test_training_goes_on_bit_by_bit_when_saves_fail(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    undisturbed = world.run(2, fail_to_save, folder=str(file), saves=False)
    ranks = world.run_ranks(2, fail_to_save, folder=str(file), saves=True)
    assert [rank.value for rank in ranks] == undisturbed, ranks
    assert ranks[0].log.count("a checkpoint was not saved, training goes on") == 2, ranks[0].log


# -- a rank dies while a checkpoint is loaded --------------------------------------------------------------------------


def load_for_ever(folder):
    engine = make(3, timeout_s=8, stall_timeout_s=3)
    print("ready", flush=True)
    while True:
        engine.load_checkpoint(folder)


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.row("K3")
def test_death_while_loading(tmp_path, release):
    """The other rank ends with an error that names it, and nothing on disk has changed."""
    expected = world.run(2, write_first, folder=str(tmp_path), tag="first")
    before = files_in(tmp_path)
    first_seed = random.SystemRandom().randrange(10**6)
    for index in range(50 if release else 3):
        generator = random.Random(first_seed + index)
        where = f"seed {first_seed + index}"
        victim = generator.randrange(2)
        loading = world.World(2, load_for_ever, folder=str(tmp_path))
        try:
            loading.wait_for("ready")
            time.sleep(generator.uniform(0, 0.05))  # a load takes about so long
            loading.processes[victim].kill()
            loading.join(END_S)
            other = loading.results()[1 - victim]
        finally:
            loading.kill()
        assert other.exit_code == 1 and f"rank {victim}" in other.error, (where, other)
        assert files_in(tmp_path) == before, where
    ends = world.run(2, load_and_tell, folder=str(tmp_path))
    assert ends == [["first", facts[0]] for facts in expected]
