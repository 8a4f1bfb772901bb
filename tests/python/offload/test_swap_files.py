"""Optimizer states in swap files: the same results as in memory, and what happens when the files fail."""

import json
import os
import resource
import time

import models
import pytest
import seccomp
import strace
import torch
import world
import zeroshard

STEPS = 4
WIDTH = 40  # so that every rank updates something of each block
END_S = 5  # after a failure every rank has ended by then


def configuration(stage, dtype="fp32", path=None, ratio=1, **blocks):
    config = models.configuration(stage, dtype, gradient_clipping=0.05, optimizer=models.adamw(), **blocks)
    if path is not None:
        files = {"device": "nvme", "nvme_path": path, "ratio": ratio, "buffer_count": 2}
        config["zero_optimization"]["offload_optimizer"] = files
    return config


def make_engine_in_files(stage, dtype="fp32", path=None, **blocks):
    model = models.stack(width=WIDTH)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    config = configuration(stage, dtype, path, **blocks)
    return zeroshard.initialize(model=model, model_parameters=groups, config=config)[0]


def train_on_vectors(engine, first, last):
    for step in range(first, last):
        x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, 0, 12, WIDTH))
        out = engine(x.to(next(engine.module.parameters()).dtype))
        engine.backward(torch.nn.functional.mse_loss(out.float(), y))
        engine.step()


def states(engine):
    """Of every parameter: the whole master weights and moments."""
    found = []
    for param in engine.module.parameters():
        found.append(zeroshard.get_master_weight(param).tolist())
        found += [zeroshard.get_optimizer_state(param, key).tolist() for key in ("exp_avg", "exp_avg_sq")]
    return found


def compare(folder, stage, dtype, ratio):
    plain = make_engine_in_files(stage, dtype)
    swapped = make_engine_in_files(stage, dtype, [f"{folder}/one", f"{folder}/other"], ratio=ratio)
    for engine in (plain, swapped):
        train_on_vectors(engine, 0, STEPS)
    assert plain.parameter_digest() == swapped.parameter_digest()
    assert states(plain) == states(swapped)
    # Both ways through a checkpoint, and on from there.
    for engine, name in ((plain, "plain"), (swapped, "swapped")):
        engine.save_checkpoint(f"{folder}/{name}")
    swapped.load_checkpoint(f"{folder}/plain")
    plain.load_checkpoint(f"{folder}/swapped")
    assert states(plain) == states(swapped)
    for engine in (plain, swapped):
        train_on_vectors(engine, STEPS, STEPS + 2)
    assert plain.parameter_digest() == swapped.parameter_digest()
    # States that are set are used.
    for engine in (plain, swapped):
        param = next(engine.module.parameters())
        zeroshard.set_optimizer_state(param, "exp_avg", torch.full(param.shape, 0.25))
        zeroshard.set_master_weight(param, torch.full(param.shape, 0.5))
        train_on_vectors(engine, STEPS + 2, STEPS + 4)
    assert states(plain) == states(swapped)
    return plain.parameter_digest()


@pytest.mark.parametrize(
    "ranks,stage,dtype,ratio",
    [
        (1, 1, "bf16", 1),
        (2, 1, "fp32", 1),
        (2, 2, "fp16", 1),
        (3, 3, "bf16", 1),
        (1, 3, "fp32", 0.3),
        (2, 1, "bf16", 0.3),
        (2, 2, "fp16", 0.5),
        (2, 3, "bf16", 0.3),
    ],
)
def test_results_checkpoints_and_states_are_those_of_memory(tmp_path, ranks, stage, dtype, ratio):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    assert len(set(world.run(ranks, compare, folder=str(tmp_path), stage=stage, dtype=dtype, ratio=ratio))) == 1
    assert not os.listdir(tmp_path / "one")


def bytes_in(engine, tier):
    return engine.memory_report()["tiers"].get(tier, {"planned": 0})["planned"]


def choose_by_limits(folder):
    found = []
    limit = None
    for by in (0, -1):
        config = configuration(2, path=folder)
        config["zero_optimization"]["offload_optimizer"]["device"] = "auto"
        if limit is not None:
            config["zeroshard"] = {"offload": {"host_memory": limit + by}}
        engine = zeroshard.initialize(model=models.stack(width=200), config=config)[0]
        if limit is None:
            limit = bytes_in(engine, "device")
        for step in range(STEPS):
            x, y = (models.share(each, world.rank(), world.size()) for each in models.vectors(step, 0, 12, 200))
            engine.backward(torch.nn.functional.mse_loss(engine(x), y))
            engine.step()
        found.append((bytes_in(engine, "file") > 0, engine.parameter_digest()))
    return found


def test_auto_takes_files_where_memory_does_not_suffice(tmp_path):
    for (in_memory, digest), (in_files, other_digest) in world.run(2, choose_by_limits, folder=str(tmp_path)):
        assert (in_memory, in_files) == (False, True)
        assert digest == other_digest


def states_by_tier(engine):
    """Planned bytes of master weights and moments, which are those that were held."""
    held = {"device": 0, "file": 0}
    for category, tier, planned, peak in engine._run.core.memory():
        if category in ("master weights", "moments"):
            assert planned == peak, (category, tier)
            held[tier] += planned
    return held


def tied_frozen_and_read_from_json(folder, stage, ratio):
    """A model with a tie and frozen layers, in two param groups; the configuration is a file. Returns what it has."""
    path = f"{folder}/ds-{ratio}-{world.rank()}.json"
    with open(path, "w") as file:
        json.dump(configuration(stage, "bf16", folder, ratio, accumulation=2), file)
    model = models.tiny_llama(tied=True, layers=3)
    for name, param in model.named_parameters():
        param.requires_grad_("q_proj" not in name)
    trained = [param for param in model.parameters() if param.requires_grad]
    groups = [{"params": trained[::2]}, {"params": trained[1::2], "weight_decay": 0.3}]
    engine = zeroshard.initialize(model=model, model_parameters=groups, config=path)[0]
    for step in range(3):
        models.take_step(engine, step, accumulation=2)
    held = states_by_tier(engine)
    return engine.parameter_digest(), engine.get_global_grad_norm(), held["file"], held["device"]


@pytest.mark.parametrize("ranks,stage", [(1, 2), (2, 1), (2, 3)])
def test_a_share_of_the_states_of_a_model_with_ties_and_frozen_layers(tmp_path, ranks, stage):
    by_ratio = {}
    for ratio in (0, 0.3, 0.999, 1):
        arguments = {"folder": str(tmp_path), "stage": stage, "ratio": ratio}
        by_ratio[ratio] = world.run(ranks, tied_frozen_and_read_from_json, **arguments)
    digests = {found[:2] for by_rank in by_ratio.values() for found in map(tuple, by_rank)}
    assert len(digests) == 1, by_ratio
    for rank in range(ranks):
        in_file, in_memory = ([by_ratio[ratio][rank][part] for ratio in by_ratio] for part in (2, 3))
        assert in_file[0] == 0 and in_memory[-1] == 0
        assert in_file[0] < in_file[1] < in_file[2] <= in_file[3]
        assert {a + b for a, b in zip(in_file, in_memory, strict=True)} == {in_memory[0]}


def save_with_a_ratio(folder, stage, ratio):
    engine = make_engine_in_files(stage, "bf16", f"{folder}/swap", ratio=ratio)
    train_on_vectors(engine, 0, 2)
    engine.save_checkpoint(f"{folder}/saves")
    return states(engine)


def load_with_a_ratio(folder, stage, ratio):
    engine = make_engine_in_files(stage, "bf16", f"{folder}/swap", ratio=ratio)
    train_on_vectors(engine, 5, 6)
    engine.load_checkpoint(f"{folder}/saves")
    return states(engine)


@pytest.mark.parametrize("saved,loaded", [(0.3, 1), (1, 0.3), (0.6, 0), (0, 0.6)])
def test_checkpoints_go_between_ratios_stages_and_numbers_of_ranks(tmp_path, saved, loaded):
    (tmp_path / "swap").mkdir()
    expected = world.run(2, save_with_a_ratio, folder=str(tmp_path), stage=2, ratio=saved)[0]
    for ranks, stage in ((1, 1), (3, 3)):
        for found in world.run(ranks, load_with_a_ratio, folder=str(tmp_path), stage=stage, ratio=loaded):
            assert found == expected


def save_what_was_written(folder, async_, ratio):
    own = {"checkpoint": {"async": async_}}
    plain = make_engine_in_files(1, "bf16")
    swapped = make_engine_in_files(1, "bf16", f"{folder}/swap", ratio=ratio, zeroshard=own)
    for engine in (plain, swapped):
        train_on_vectors(engine, 0, 1)
        for param in engine.module.parameters():
            param.data.mul_(1.5)  # not seen by torch's counter of versions
        engine.save_checkpoint(f"{folder}/{'plain' if engine is plain else 'swapped'}")
        train_on_vectors(engine, 1, 2)
    written = make_engine_in_files(1, "bf16")
    found = []
    for name in ("plain", "swapped"):
        written.load_checkpoint(f"{folder}/{name}")
        found.append(states(written))
    assert found[0] == found[1]
    return plain.parameter_digest() == swapped.parameter_digest()


@pytest.mark.parametrize("async_,ratio", [(False, 1), (True, 1), (False, 0.3), (True, 0.3)])
def test_a_save_has_what_was_written_to_parameters_before_it(tmp_path, async_, ratio):
    (tmp_path / "swap").mkdir()
    assert world.run(2, save_what_was_written, folder=str(tmp_path), async_=async_, ratio=ratio) == [True, True]


def take_over(folder):
    digests = []
    for path, ratio in ((None, 1), (folder, 1), (folder, 0.3)):
        model = models.stack(width=WIDTH)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        for step in range(2):
            optimizer.zero_grad()
            x, y = models.vectors(step, 0, 2, WIDTH)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        engine = zeroshard.initialize(
            model=model, optimizer=optimizer, config=configuration(2, path=path, ratio=ratio)
        )[0]
        train_on_vectors(engine, 2, 4)
        digests.append(engine.parameter_digest())
    return digests


def test_states_of_an_optimizer_before_the_engine_go_into_the_files(tmp_path):
    for plain, swapped, part in world.run(2, take_over, folder=str(tmp_path)):
        assert plain == swapped == part


def refusals(folder):
    said = []
    open(f"{folder}/file-{world.rank()}", "w").close()
    for path in ("/proc/missing", f"{folder}/file-0"):
        with pytest.raises(zeroshard.ConfigError) as error:
            make_engine_in_files(2, path=path)
        said.append(str(error.value))
    model = models.stack(width=WIDTH)
    config = configuration(2, path=folder, zero_allow_untested_optimizer=True)
    del config["optimizer"]
    with pytest.raises(zeroshard.ConfigError) as error:
        zeroshard.initialize(model=model, optimizer=torch.optim.RMSprop(model.parameters()), config=config)
    said.append(str(error.value))
    # On one rank the disk has no room.
    if world.rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    with pytest.raises(zeroshard.ConfigError) as error:
        make_engine_in_files(2, path=folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    said.append(str(error.value))
    train_on_vectors(
        make_engine_in_files(2, path=f"{folder}/a/b"), 0, 1
    )  # afterwards all is well, in a directory that is made
    return said


@pytest.mark.row("D3")
def test_what_cannot_work_is_refused_on_every_rank(tmp_path):
    for missing, file, outside, full in world.run(2, refusals, folder=str(tmp_path)):
        assert "offload_optimizer.nvme_path: rank 0: cannot open the directory /proc/missing" in missing
        assert f"{tmp_path}/file-0: Not a directory" in file
        assert 'device = "nvme"' in outside and "RMSprop" in outside and 'set "cpu"' in outside
        assert f"rank 1: cannot reserve space for the swap file in {tmp_path}" in full
        assert "needs" in full and "bytes" in full
    assert (tmp_path / "a" / "b").is_dir()


# -- how much is moved -------------------------------------------------------------------------------------------------


def moved():
    """The bytes that this process has read and written by system calls, those of io_uring aside."""
    with open("/proc/self/io") as lines:
        counts = dict(line.split(": ") for line in lines)
    return int(counts["rchar"]), int(counts["wchar"])


def swap_bytes(engine):
    return engine.memory_report()["tiers"]["file"]["planned"]


def moved_by_checkpoints(folder, stage, async_):
    seccomp.refuse_io_uring()
    # So large that what else is read and written, such as manifests, does not count.
    model = torch.nn.Sequential(*(torch.nn.Linear(400, 400) for _ in range(6)))
    config = configuration(stage, "bf16", f"{folder}/swap", zeroshard={"checkpoint": {"async": async_}})
    engine = zeroshard.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    x = torch.ones(2, 400, dtype=torch.bfloat16)
    engine.backward(engine(x).float().square().mean())
    engine.step()

    def save(name):
        engine.save_checkpoint(f"{folder}/{name}")
        engine.wait_for_checkpoint()

    save("before")
    shares = []
    calls = {
        "save": lambda: save("saves"),
        "load": lambda: engine.load_checkpoint(f"{folder}/saves"),
        "export": lambda: engine.save_16bit_model(f"{folder}/model"),
    }
    for name, call in calls.items():
        before = moved()
        call()
        shares.append((name, *((b - a) / swap_bytes(engine) for a, b in zip(before, moved(), strict=True))))
    return shares


@pytest.mark.parametrize("ranks,stage,async_", [(1, 1, False), (2, 3, False), (1, 1, True), (2, 3, True)])
def test_saves_read_the_files_once_and_loads_write_them_once(tmp_path, ranks, stage, async_):
    (tmp_path / "swap").mkdir()
    for shares in world.run(ranks, moved_by_checkpoints, folder=str(tmp_path), stage=stage, async_=async_):
        found = {name: (read, written) for name, read, written in shares}
        more = 0.1  # blocks at the ends of parameters, the manifest, the library's own files
        # Two of six chunks may still be in buffers. In the background the master weights are read before, where users
        # may have written to parameters. The checkpoint is as long as the files.
        again = 1 / 3 if async_ and stage < 3 else 0
        assert 0.6 < found["save"][0] < 1 + again + more and 0.9 < found["save"][1] < 1 + more, found
        # A load reads the checkpoint and, to publish them, the master weights: a third, twice where users may have
        # written to the parameters before.
        assert found["load"][0] < 1 + (2 / 3 if stage < 3 else 1 / 3) + more, found
        # A save in the background leaves the last chunk of the step in its buffer: it is written when another is lent.
        left = 1 / 6 if async_ else 0
        assert 0.9 < found["load"][1] < 1 + left + more, found
        assert found["export"][0] < more, found


# -- saves in the background -------------------------------------------------------------------------------------------


def train_while_saving(folder, stage, dtype):
    found = {}
    for name, path in (("plain", None), ("swapped", f"{folder}/swap")):
        engine = make_engine_in_files(stage, dtype, path)
        for step in range(STEPS):
            train_on_vectors(engine, step, step + 1)
            if step == 1:
                wanted = states(engine)
            if step in (1, 2):
                engine.save_checkpoint(f"{folder}/{name}", tag=f"step{step}")
        found[name] = engine.parameter_digest(), wanted
    assert found["plain"] == found["swapped"]
    engine.wait_for_checkpoint()
    fresh = make_engine_in_files(3 - stage % 3, dtype)  # of another stage, without files
    fresh.load_checkpoint(f"{folder}/swapped", tag="step1")
    assert states(fresh) == found["swapped"][1]
    train_on_vectors(fresh, 2, STEPS)
    return fresh.parameter_digest() == found["swapped"][0]


@pytest.mark.parametrize("ranks,stage,dtype", [(1, 1, "fp32"), (2, 2, "bf16"), (3, 3, "fp32"), (2, 3, "fp16")])
def test_a_save_in_the_background_has_the_state_of_its_step(tmp_path, ranks, stage, dtype):
    (tmp_path / "swap").mkdir()
    assert world.run(ranks, train_while_saving, folder=str(tmp_path), stage=stage, dtype=dtype) == [True] * ranks


def resident(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


def peak_resident(call):
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # the peak begins anew
    call()
    return resident("VmHWM")


def memory_of_a_save(folder, stage):
    """The bytes that a save in the background, with the next step beside it, takes beyond what a step takes."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(24)))
    config = configuration(stage, "bf16", f"{folder}/swap")
    engine = zeroshard.initialize(model=model, model_parameters=model.parameters(), config=config)[0]

    def step():
        engine.backward(engine(torch.ones(2, 1000, dtype=torch.bfloat16)).float().square().mean())
        engine.step()

    def save():
        engine.save_checkpoint(f"{folder}/saves")
        step()
        engine.wait_for_checkpoint()

    step()
    without = peak_resident(step)
    return peak_resident(save) - without, swap_bytes(engine)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_save_in_the_background_takes_little_memory(tmp_path, stage):
    (tmp_path / "swap").mkdir()
    [(more, states_bytes)] = world.run(1, memory_of_a_save, folder=str(tmp_path), stage=stage)
    assert more <= 64 << 20 < states_bytes / 4


def save_and_go_on(swap, saves, stage):
    engine = make_engine_in_files(stage, "bf16", path=swap, zeroshard={"timeout_s": 30})
    return save_when_told(engine, saves, train_on_vectors)


def save_when_told(engine, saves, train):
    train(engine, 0, 2)
    engine.save_checkpoint(saves, tag="first")
    engine.wait_for_checkpoint()
    digest = engine.parameter_digest()
    print("ready.", flush=True)
    while not os.path.exists(f"{saves}/go"):
        time.sleep(0.005)
    begun = time.monotonic()
    try:
        engine.save_checkpoint(saves, tag="second")
        train(engine, 2, 6)
        engine.wait_for_checkpoint()
    except Exception as error:
        return [digest, f"{type(error).__name__}: {error}", time.monotonic() - begun]
    return [digest, "", time.monotonic() - begun]


@pytest.mark.row("D3")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_read_of_a_save_that_fails_ends_every_rank(tmp_path, stage, release):
    check_failing_reads_of_saves(tmp_path, release, save_and_go_on, load, {"stage": stage}, {"dtype": "bf16"})


def check_failing_reads_of_saves(tmp_path, release, saving, loading, options, of_load=None):
    """The n-th read of a save on one rank fails, for many n: `saving` calls save_when_told(), `loading` a load."""
    strace.require()
    hit = 0
    for nth in range(1, 40, 1 if release else 6):
        swap, saves = tmp_path / f"swap-{nth}", tmp_path / f"saves-{nth}"
        swap.mkdir()
        trained = world.World(2, saving, swap=str(swap), saves=str(saves), **options)
        try:
            trained.wait_for("ready.")
            with strace.attached(trained.pids[1], "pread64", "-f", "-e", f"inject=pread64:error=EIO:when={nth}+"):
                (saves / "go").touch()
                ends = trained.results()
        finally:
            trained.kill()
        if not ends[0].value[1]:
            break  # so many reads there are not
        hit += 1
        for end in ends:
            digest, said, seconds = end.value
            assert f"the swap file in {swap}" in said and "of unit" in said, end
            assert seconds < END_S
        assert not os.listdir(swap)
        assert not os.path.exists(saves / "second")
        assert world.run(2, loading, saves=str(saves), **options, **(of_load or {})) == [digest] * 2
    assert hit


@pytest.mark.row("D3")
def test_ranks_that_die_during_a_save_leave_the_checkpoint_before_and_an_error(tmp_path):
    strace.require()
    swap, saves = tmp_path / "swap", tmp_path / "saves"
    swap.mkdir()
    trained = world.World(2, save_and_go_on, swap=str(swap), saves=str(saves), stage=3)
    try:
        trained.wait_for("ready.")
        # So slow that the save has not come far when the other rank dies.
        with strace.attached(trained.pids[0], "pread64", "-f", "-e", "inject=pread64:delay_enter=100000"):
            (saves / "go").touch()
            time.sleep(0.5)
            os.kill(trained.pids[1], 9)
            ends = trained.results()
    finally:
        trained.kill()
    digest, said, seconds = ends[0].value
    assert said.startswith("CommError") and seconds < 2 * END_S
    assert world.run(2, load, saves=str(saves), stage=3, dtype="bf16") == [digest] * 2


# -- files that fail ---------------------------------------------------------------------------------------------------


def go_on_when_told(swap, saves, stage):
    gradients = "nvme" if stage == 2 else "auto"
    engine = make_engine_in_files(stage, path=swap, zeroshard={"timeout_s": 30, "offload": {"gradients": gradients}})
    train_on_vectors(engine, 0, 2)
    engine.save_checkpoint(saves)
    engine.wait_for_checkpoint()
    digest = engine.parameter_digest()
    print("ready.", flush=True)
    while not os.path.exists(f"{saves}/go"):
        time.sleep(0.005)
    begun = time.monotonic()
    try:
        train_on_vectors(engine, 2, 6)
    except Exception as error:
        return [digest, f"{type(error).__name__}: {error}", time.monotonic() - begun]
    return [digest, "", time.monotonic() - begun]


def load(saves, stage, dtype="fp32"):
    engine = make_engine_in_files(stage, dtype)
    engine.load_checkpoint(saves)
    return engine.parameter_digest()


@pytest.mark.row("D3")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_nth_failing_call_ends_every_rank(tmp_path, stage, release):
    strace.require()
    hit = 0
    for nth, error in enumerate(["EIO", "ENOSPC", "EDQUOT"] * (7 if release else 1)):
        swap, saves = tmp_path / f"swap-{nth}", tmp_path / f"saves-{nth}"
        swap.mkdir()
        trained = world.World(2, go_on_when_told, swap=str(swap), saves=str(saves), stage=stage)
        first = 1 + nth * (1 if release else 4)
        ends = strace.ends_after_failing_ring(trained, saves / "go", error, first)
        if ends is None:
            continue
        hit += 1
        digest = strace.check_ends_of_failed_swap(ends, swap, END_S)
        assert world.run(2, load, saves=str(saves), stage=stage) == [digest] * 2
    assert hit


def damage_own_file(folder, number=0):
    """Turns the bytes of one of this rank's swap files, which have no names any more: in the order of their making."""
    paths = [f"/proc/self/fd/{name}" for name in sorted(os.listdir("/proc/self/fd"), key=int)]
    files = [path for path in paths if os.path.islink(path) and os.readlink(path).startswith(folder)]
    files = [path for path in files if os.path.getsize(path) > 0]
    assert len(files) > number, f"no such open file in {folder}"
    with open(files[number], "r+b") as file:
        turned = bytes(byte ^ 255 for byte in file.read())
        file.seek(0)
        file.write(turned)


def load_into_damage(folder):
    engine = make_engine_in_files(3, path=f"{folder}/swap", zeroshard={"timeout_s": 30})
    train_on_vectors(engine, 0, 2)
    engine.save_checkpoint(f"{folder}/saves", tag="first")
    engine.save_checkpoint(f"{folder}/saves", tag="last")
    engine.wait_for_checkpoint()
    if world.rank() == 1:
        damage_own_file(f"{folder}/swap")
    with pytest.raises(zeroshard.Error) as error:
        engine.load_checkpoint(f"{folder}/saves")
    return str(error.value)


@pytest.mark.row("D3")
def test_files_that_fail_while_a_checkpoint_is_loaded_do_not_make_it_look_damaged(tmp_path):
    (tmp_path / "swap").mkdir()
    for said in world.run(2, load_into_damage, folder=str(tmp_path), timeout_s=60):
        assert "the swap file in" in said and "no checkpoint" not in said and "first" not in said, said


def save_to_a_full_disk(folder):
    own = {"checkpoint": {"async": True, "on_error": "warn"}}
    engine = make_engine_in_files(2, path=f"{folder}/swap", zeroshard=own)
    train_on_vectors(engine, 0, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    engine.save_checkpoint(f"{folder}/saves")
    assert not engine.wait_for_checkpoint()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    train_on_vectors(engine, 1, 2)
    engine.save_checkpoint(f"{folder}/saves", tag="last")
    engine.wait_for_checkpoint()
    return os.path.isdir(f"{folder}/saves/last")


def test_a_save_that_fails_is_a_warning_where_it_is_one_in_the_background(tmp_path):
    (tmp_path / "swap").mkdir()
    assert world.run(2, save_to_a_full_disk, folder=str(tmp_path)) == [True, True]


@pytest.mark.row("D3")
def test_nothing_is_left_when_ranks_are_killed(tmp_path):
    swap, saves = tmp_path / "swap", tmp_path / "saves"
    swap.mkdir()
    trained = world.World(2, go_on_when_told, swap=str(swap), saves=str(saves), stage=3)
    try:
        trained.wait_for("ready.")
        digest = world.run(2, load, saves=str(saves), stage=3)
    finally:
        trained.kill()
    trained.join()
    assert not os.listdir(swap)
    assert world.run(2, load, saves=str(saves), stage=3) == digest
