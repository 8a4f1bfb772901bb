"""Damaged and hostile checkpoints, full disks: every rank takes the same older one, or says what is wrong."""

import ctypes
import ctypes.util
import json
import os
import random
import re
import resource
import shutil
import stat
import subprocess
import time

import models
import pytest
import strace
import torch
import torch.distributed as dist
import world
import zeroshard
from built import ZEROSHARD
from checkpointed import facts, make, seed, train
from leftovers import nothing_left  # noqa: F401 - a fixture
from saved import checkpoints_in
from test_checkpoint_faults import verified
from waiting import wait_for

pytestmark = pytest.mark.fault
OLD, NEW = "global_step2", "global_step4"
SHARDS = [f"rank-0000{rank}.safetensors" for rank in (0, 1)]
REFUSED_S = 5  # half of the timeout: no rank waited for another in vain


def write_two(folder):
    """Checkpoints of steps 2 and 4. The facts of each; of the buffers, rank 0's and 1's own."""
    engine = make(2, checkpoint={"async": False})
    seed(engine)
    found = []
    for _ in range(2):
        train(engine, 2)
        engine.save_checkpoint(folder)
        found.append(facts(engine))
    return found


def written(folder):
    """As write_two(), for three ranks that load: the third has rank 0's buffers. Old first."""
    ranks = world.run(2, write_two, folder=folder)
    return [[ranks[rank][which] for rank in (0, 1, 0)] for which in (0, 1)]


# -- damage ------------------------------------------------------------------------------------------------------------


def damage(folder, kind, name, at):
    """Changes the newer checkpoint."""
    new, old = os.path.join(folder, NEW), os.path.join(folder, OLD)
    path = os.path.join(new, name)
    if kind == "flip":
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << (at % 8))]))
    elif kind == "cut":
        os.truncate(path, at)
    elif kind == "grow":
        with open(path, "ab") as file:
            file.write(b"\0" * at)
    elif kind == "delete":
        os.unlink(path)
    elif kind == "older":
        shutil.copyfile(os.path.join(old, name), path)
    elif kind == "swap":
        other = os.path.join(new, SHARDS[1 - SHARDS.index(name)])
        os.rename(path, path + "x")
        os.rename(other, path)
        os.rename(path + "x", other)
    else:
        assert kind == "place"
        os.unlink(path)
        make_special(at, path)


def make_special(what, path):
    if what == "fifo":
        os.mkfifo(path)
    elif what == "device":
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
    elif what == "directory":
        os.mkdir(path)
    else:
        os.symlink(what, path)


def load_damaged(folder, pristine, damages):
    """For each damage: what a load finds, how long it takes, and what a strict one says."""
    engine = make(3, timeout_s=10)
    train(engine, 1)
    answers = []
    for each in damages:
        if engine.rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(pristine, folder, symlinks=True)
            damage(folder, *each)
        dist.barrier()
        began = time.monotonic()
        path, _ = engine.load_checkpoint(folder)
        took = time.monotonic() - began
        found, said = facts(engine), None
        try:
            engine.load_checkpoint(folder, strict=True)
        except zeroshard.IoError as error:
            said = str(error)
        answers.append([os.path.basename(path), found, said, took])
        dist.barrier()
    return answers


def check_damages(tmp_path, damages):
    pristine, folder = str(tmp_path / "pristine"), str(tmp_path / "work")
    old, _ = written(pristine)
    damages = damages(pristine) if callable(damages) else damages
    ranks = world.run(3, load_damaged, folder=folder, pristine=pristine, damages=damages, timeout_s=3000)
    for rank, answers in enumerate(ranks):
        for each, (tag, found, said, took) in zip(damages, answers, strict=True):
            assert tag == OLD and found == old[rank], (each, rank, tag)
            # Either file may be named when two do not belong together.
            named = SHARDS if each[0] == "swap" else [each[1]]
            assert said is not None and any(f"{NEW}/{name}" in said for name in named), (each, rank, said)
            assert took < REFUSED_S, (each, rank, took)
    return damages


def header_bytes(path):
    with open(path, "rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


@pytest.mark.row("C1")
def test_damage_is_noticed_by_all_ranks(tmp_path, release):
    first_seed = random.SystemRandom().randrange(10**6)
    print(f"seed {first_seed}")
    generator = random.Random(first_seed)

    def damages(pristine):
        chosen = []
        for name in [*SHARDS, "manifest.json"]:
            path = os.path.join(pristine, NEW, name)
            size = os.path.getsize(path)
            header = header_bytes(path) if name in SHARDS else 100
            heads = range(header) if release else [0, 7, 8, 15, header - 1, *generator.sample(range(header), 6)]
            bodies = generator.sample(range(header, size), 500 if release else 12)
            cuts = {0, 1, 7, 8, header, size - 1, *generator.sample(range(size), 58 if release else 2)}
            chosen += [["flip", name, at] for at in [*heads, *bodies]]
            chosen += [["cut", name, at] for at in cuts]
            chosen += [["grow", name, 1], ["grow", name, 4096], ["delete", name, 0], ["older", name, 0]]
        return [*chosen, *(["swap", name, 0] for name in SHARDS)]

    check_damages(tmp_path, damages)


def save_two_elements(folder):
    engine = zeroshard.initialize(model=torch.nn.Linear(1, 1), config=models.configuration(2))[0]
    engine.save_checkpoint(folder, tag="few")
    engine.wait_for_checkpoint()


def test_damage_is_noticed_where_a_rank_has_no_element(tmp_path):
    world.run(4, save_two_elements, folder=str(tmp_path))
    for path in sorted((tmp_path / "few").glob("rank-*.safetensors")):
        whole = path.read_bytes()
        path.write_bytes(whole[:10] + bytes([whole[10] ^ 1]) + whole[11:])
        found = verified(tmp_path / "few")
        assert found.returncode != 0 and f"{path.name} is damaged" in found.stdout + found.stderr, found
        path.write_bytes(whole)


@pytest.mark.row("X3")
def test_only_regular_files_are_read(tmp_path):
    special = ["fifo", "directory", f"../{OLD}/{SHARDS[0]}", "/etc/hostname", "/dev/zero"]
    try:
        make_special("device", str(tmp_path / "device"))
        special.append("device")
    except PermissionError:
        pass  # the links to one remain
    check_damages(tmp_path, [["place", name, what] for name in [*SHARDS, "manifest.json"] for what in special])


def xxh3(data):
    library = ctypes.util.find_library("xxhash")
    if library is None:
        pytest.skip("libxxhash.so is not installed: a hostile manifest needs its checksum")
    function = ctypes.CDLL(library).XXH3_64bits
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    return function(data, len(data))


def load_hostile(folder):
    engine = make(3, timeout_s=10)
    began = time.monotonic()
    try:
        engine.load_checkpoint(folder, tag=NEW)
    except (zeroshard.IoError, zeroshard.ValueError) as error:
        return [str(error), time.monotonic() - began]
    return ["", 0]


@pytest.mark.row("X3")
@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "deep/../../secret", f"../{OLD}/{SHARDS[0]}", ".", ""])
def test_a_manifest_cannot_lead_out_of_its_directory(tmp_path, name):
    folder = tmp_path / "root"
    written(str(folder))
    path = folder / NEW / "manifest.json"
    first, body = path.read_bytes().split(b"\n", 1)
    assert b'"%016x"' % xxh3(body) in first  # so the one below is accepted
    changed = body.replace(json.dumps(SHARDS[1]).encode(), json.dumps(name).encode())
    assert changed != body
    (folder / "secret").write_bytes((folder / NEW / SHARDS[1]).read_bytes())
    path.write_bytes(b'{"xxh3_64": "%016x",\n' % xxh3(changed) + changed)
    for said, took in world.run(3, load_hostile, folder=str(folder)):
        assert "is not the name of a file of a checkpoint" in said and took < REFUSED_S, (said, took)


# -- what loading may do -----------------------------------------------------------------------------------------------


def load_when_told(folder):
    engine = make(3)
    print("ready", flush=True)
    wait_for(lambda: os.path.exists(folder + ".go"), "the tracer", seconds=60)
    engine.load_checkpoint(folder)
    engine.load_checkpoint(folder, tag=OLD)
    os._exit(0)


@pytest.mark.row("X3", "X4")
def test_loading_runs_no_code(tmp_path):
    strace.require()
    folder = str(tmp_path / "root")
    written(folder)
    loading = world.World(2, load_when_told, folder=folder)
    try:
        loading.wait_for("ready")
        calls = "execve,execveat,fork,vfork,clone,clone3,mmap,mprotect,open,openat,openat2"
        with strace.attached(loading.pids[0], calls) as trace:
            with open(folder + ".go", "w"):
                pass
            loading.join(20)
        assert [end.exit_code for end in loading.results()] == [0, 0]
    finally:
        loading.kill()
    lines = trace()
    assert sum("rank-0000" in line for line in lines) >= 2, lines  # it is the load that was traced
    bad = [line for line in lines if re.match(r"(execve|execveat|fork|vfork)\(", line) or "PROT_EXEC" in line]
    bad += [line for line in lines if re.match(r"clone", line) and "CLONE_THREAD" not in line]
    bad += [line for line in lines if re.match(r"open", line) and re.search(r'\.(so|py|pyc|pt|pkl)[."]', line)]
    assert not bad, bad
    for directory, _, names in os.walk(folder):
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700, directory
        for name in names:
            assert stat.S_IMODE(os.stat(os.path.join(directory, name)).st_mode) == 0o600, name


# -- disks that are full or may not be written -------------------------------------------------------------------------


class Mounts:
    """A mount namespace of its own with file systems in memory; ranks go there by enter()."""

    def __init__(self, folder, script):
        command = ["unshare", "-Urm", "sh", "-ec", f"{script}\necho mounted\nread _"]
        pipe = subprocess.PIPE
        self.holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, cwd=folder)
        said = self.holder.stdout.readline().decode()
        if said != "mounted\n":
            self.close()
            pytest.skip(f"no file system can be mounted here: {said.strip()}")

    def close(self):
        self.holder.kill()
        self.holder.wait()


@pytest.fixture
def mounts(tmp_path):
    made = []

    def mount(script):
        made.append(Mounts(tmp_path, script))
        return made[-1].holder.pid

    yield mount
    for each in made:
        each.close()


def enter(holder):
    """Sees the mounts of Mounts. Before there are threads."""
    clone_newns, clone_newuser = 0x20000, 0x10000000
    process = os.pidfd_open(holder)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.setns(process, clone_newns | clone_newuser) == 0, os.strerror(ctypes.get_errno())
    os.close(process)


def try_to_save(engine, folder):
    """What is said when a checkpoint cannot be written; '' when it can."""
    try:
        engine.save_checkpoint(folder)
        engine.wait_for_checkpoint()
    except zeroshard.IoError as error:
        return str(error)
    return ""


def loaded(engine, folder):
    path, _ = engine.load_checkpoint(folder)
    return [os.path.basename(path), facts(engine)]


def used(folder):
    """Bytes on disk of what is in a folder."""
    names = [os.path.join(folder, name) for name in os.listdir(folder)]
    return sum(os.stat(name).st_blocks * 512 for name in names)


def save_on_small_disks(holder, folder, percents):
    enter(holder)
    answers = []
    for index, percent in enumerate(percents):
        engine = make(2, timeout_s=10, checkpoint={"async": index % 2 == 0, "keep": 3})
        root, filler = os.path.join(folder, "disk", str(percent)), os.path.join(folder, "disk", "filler")
        seed(engine)
        train(engine, 1)
        assert try_to_save(engine, root) == ""
        old = facts(engine)
        train(engine, 1)
        new = facts(engine)
        if engine.rank() == 0:
            disk = os.statvfs(root)
            room = used(os.path.join(root, "global_step1")) * percent // 100
            with open(filler, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - room)
        dist.barrier()
        said = try_to_save(engine, root)
        first = loaded(engine, root)
        train(engine, 1 if first[0] == "global_step1" else 0)
        same = facts(engine) == new  # the step that could not be saved, again
        if engine.rank() == 0:
            os.unlink(filler)
        dist.barrier()
        later = try_to_save(engine, root)
        second = loaded(engine, root)
        left = checkpoints_in(root)
        answers.append([said, first == ["global_step1", old], same, later, second == ["global_step2", new], left])
        dist.barrier()
        if engine.rank() == 0:
            shutil.rmtree(root)
    return answers


@pytest.mark.row("D2")
def test_a_full_disk(tmp_path, mounts, release):
    holder = mounts("mkdir disk && mount -t tmpfs -o size=4m tmpfs disk")
    percents = list(range(10, 111, 5)) if release else [10, 50, 95, 110]
    ranks = world.run(2, save_on_small_disks, holder=holder, folder=str(tmp_path), percents=percents)
    assert [answer[0] for answer in ranks[0]] == [answer[0] for answer in ranks[1]]
    for rank in ranks:
        for percent, (said, kept, same, later, saved, left) in zip(percents, rank, strict=True):
            where = (percent, said)
            if percent < 100:
                assert "No space left on device" in said and "are free" in said, where
                assert re.search(r"rank [01]: ", said) and f"disk/{percent}/.tmp-global_step2" in said, where
            if percent >= 110:
                assert said == "", where
            assert kept == (said != ""), where
            assert same and later == "" and saved, where
            assert left == ["global_step1", "global_step2", "latest"], where


def save_past_limits(holder, folder, what):
    """Saves a second step where something forbids it, then again where nothing does."""
    enter(holder)
    disk = os.path.join(folder, "disk")
    root, allowed = os.path.join(disk, "view"), os.path.join(disk, "free")
    engine = make(1, timeout_s=10)
    seed(engine)
    train(engine, 1)
    assert try_to_save(engine, allowed) == ""
    old = facts(engine)
    train(engine, 1)
    new = facts(engine)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    filler = []
    if what == "file size" and engine.rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, limits[1]))
    if what == "inodes" and engine.rank() == 0:
        while os.statvfs(allowed).f_favail > 4:
            filler.append(os.path.join(disk, f"filler{len(filler)}"))
            with open(filler[-1], "w"):
                pass
    dist.barrier()
    said = try_to_save(engine, root if what == "read-only" else allowed)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    first = loaded(engine, root if what == "read-only" else allowed)
    for path in filler:
        os.unlink(path)
    dist.barrier()
    train(engine, 1)
    same = facts(engine) == new
    later = try_to_save(engine, allowed)
    second = loaded(engine, allowed)
    left = checkpoints_in(allowed)
    return [said, first == ["global_step1", old], same, later, second == ["global_step2", new], left]


@pytest.mark.row("D2")
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("read-only", ["rank 0: ", "disk/view/", "Read-only file system", "Choose a directory"]),
        ("file size", ["rank 1: ", "disk/free/.tmp-global_step2", "File too large", "ulimit -f"]),
        ("inodes", ["disk/free/.tmp-global_step2", "No space left on device"]),
    ],
)
def test_a_disk_that_may_not_be_written(tmp_path, mounts, what, expected):
    script = "mkdir disk && mount -t tmpfs -o size=16m,nr_inodes=100 tmpfs disk && mkdir -m 700 disk/free disk/view"
    script += " && mount --bind disk/free disk/view && mount -o remount,ro,bind disk/view"
    holder = mounts(script)
    ends = world.run_ranks(2, save_past_limits, holder=holder, folder=str(tmp_path), what=what)
    assert [end.exit_code for end in ends] == [0, 0], [end.log[-3000:] for end in ends]
    assert not any("left behind" in end.log for end in ends), ends  # nothing is, and so nothing is said of it
    ranks = [end.value for end in ends]
    assert ranks[0][0] == ranks[1][0]
    for said, kept, same, later, saved, left in ranks:
        assert all(part in said for part in expected), said
        assert kept and same and later == "" and saved
        assert left == ["global_step1", "global_step2", "latest"], left


def use_a_half_loaded(folder):
    """What engine calls say after a load that failed in rank 1's file, and the facts after one that succeeds."""
    engine = make(2)
    ids = torch.zeros(4, 6, dtype=torch.long)
    said = []
    uses = [
        lambda: engine.load_checkpoint(folder, strict=True),
        lambda: engine(ids),
        engine.step,
        lambda: engine.save_checkpoint(folder),
        lambda: engine.save_16bit_model(folder),
    ]
    for use in uses:
        try:
            use()
            said.append("")
        except zeroshard.Error as error:
            said.append(str(error))
    path, _ = engine.load_checkpoint(folder)
    found = facts(engine)
    train(engine, 1)
    return [said, os.path.basename(path), found]


@pytest.mark.row("C1")
def test_what_is_half_loaded_is_not_used(tmp_path):
    old = written(str(tmp_path))[0]
    at = os.path.getsize(tmp_path / NEW / SHARDS[1]) - 3
    damage(str(tmp_path), "flip", SHARDS[1], at)
    for (load, *others), tag, found in world.run(2, use_a_half_loaded, folder=str(tmp_path)):
        assert SHARDS[1] in load, load
        for said in others:
            assert f"load_checkpoint failed when it had read a part of {tmp_path}/{NEW}" in said, others
        assert tag == OLD and found in old


def write_by_fewer_and_more_ranks(folder, tag):
    engine = make(2, checkpoint={"async": False})
    seed(engine)
    train(engine, 2)
    client = {} if tag == OLD else {"ids": torch.arange(5)}
    engine.save_checkpoint(folder, tag=tag, client_state=client)


def load_by_three(folder):
    engine = make(2)
    path, client = engine.load_checkpoint(folder)
    train(engine, 1)
    return [os.path.basename(path), client]


@pytest.mark.row("C1")
def test_an_older_checkpoint_of_another_number_of_ranks(tmp_path):
    """Ranks have their own buffers in the damaged one, rank 0's in the other, which has no tensor of the caller's."""
    world.run(2, write_by_fewer_and_more_ranks, folder=str(tmp_path), tag=OLD)
    world.run(3, write_by_fewer_and_more_ranks, folder=str(tmp_path), tag=NEW)
    at = os.path.getsize(tmp_path / NEW / SHARDS[1]) - 3
    damage(str(tmp_path), "flip", SHARDS[1], at)
    assert world.run(3, load_by_three, folder=str(tmp_path)) == [[OLD, {}]] * 3


def write_without_and_with_frozen(folder):
    engine = make(2, checkpoint={"async": False})
    seed(engine)
    for exclude in (True, False):
        train(engine, 2)
        engine.save_checkpoint(folder, exclude_frozen_parameters=exclude)


def load_where_the_older_has_less(folder):
    """What a load says, and a pass after it; what another engine loads by its tag."""
    engine = make(2)
    said = []
    for use in (lambda: engine.load_checkpoint(folder), lambda: engine(torch.zeros(4, 6, dtype=torch.long))):
        try:
            use()
            said.append("")
        except zeroshard.Error as error:
            said.append(str(error))
    path, _ = make(2).load_checkpoint(folder, tag=OLD)
    return [said, os.path.basename(path)]


@pytest.mark.row("C1")
def test_an_older_checkpoint_replaces_all_that_a_damaged_one_has_overwritten(tmp_path):
    world.run(2, write_without_and_with_frozen, folder=str(tmp_path))
    at = os.path.getsize(tmp_path / NEW / SHARDS[1]) - 3
    damage(str(tmp_path), "flip", SHARDS[1], at)
    for (load, use), tag in world.run(2, load_where_the_older_has_less, folder=str(tmp_path)):
        assert f"{tmp_path}/{NEW} is damaged, and reading it has overwritten 'frozen' (weight)" in load, load
        assert f"had read a part of {tmp_path}/{NEW}" in use, use
        assert tag == OLD


@pytest.mark.row("C1")
def test_verify_finds_what_loading_finds(tmp_path):
    written(str(tmp_path))
    path = str(tmp_path / NEW)
    assert verified(path).returncode == 0
    at = os.path.getsize(os.path.join(path, SHARDS[1])) - 3
    damage(str(tmp_path), "flip", SHARDS[1], at)
    check = verified(path)
    assert check.returncode == 1 and SHARDS[1] in check.stdout + check.stderr, check


@pytest.mark.row("C1")
def test_the_command_tells_damage_from_a_wrong_call(tmp_path):
    written(str(tmp_path / "run"))
    new = tmp_path / "run" / NEW
    command = [ZEROSHARD, "checkpoint"]
    for arguments, code, message in [
        (["list", new], 2, f"{new} is itself a checkpoint"),
        (["export", new, tmp_path / "out", "--max-file-size", "1e20GB"], 2, "--max-file-size is '1e20GB'"),
        (["verify", tmp_path / "run"], 0, "whole"),
    ]:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == code and message in done.stdout + done.stderr, done
    os.truncate(new / "manifest.json", 100)
    damage(str(tmp_path / "run"), "cut", f"../{OLD}/{SHARDS[0]}", 100)
    for path, named in ((new, [NEW]), (tmp_path / "run", [OLD, NEW])):
        check = verified(path)
        assert check.returncode == 1 and all(name in check.stderr for name in named), check
