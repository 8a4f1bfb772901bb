"""Parameters in swap files at stage 3: the same results as in memory, and what happens when the files fail."""

import os
import time

import models
import pytest
import seccomp
import simulated
import strace
import torch
import world
import zeroshard
from test_swap_files import check_failing_reads_of_saves, damage_own_file, moved, peak_resident, save_when_told

STEPS = 3
END_S = 5  # after a failure every rank has ended by then


def configuration(dtype="fp32", path=None, states=True, most=0, buffers=2, accumulation=1, **blocks):
    """As DeepSpeed's users write it."""
    config = models.configuration(3, dtype, accumulation=accumulation, optimizer=models.adamw(), **blocks)
    config["gradient_clipping"] = 0.05
    if path is None:
        return config
    file = {"device": "nvme", "nvme_path": path}
    config["zero_optimization"]["offload_param"] = file | {
        "pin_memory": True, "buffer_count": buffers, "buffer_size": 1e8, "max_in_cpu": most,
    }  # fmt: skip
    if states:
        config["zero_optimization"]["offload_optimizer"] = file | {"buffer_count": buffers}
    return config


def without_base(model):
    """As with an adapter: of each block one small part is trained alone."""
    for name, param in model.named_parameters():
        param.requires_grad_("norm" in name or "gate_proj" in name)
    return model


def make_llama_engine(dtype="fp32", path=None, frozen=False, tied=True, **more):
    model = models.tiny_llama(tied=tied)
    if frozen:
        without_base(model)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1 and p.requires_grad]},
        {"params": [p for p in model.parameters() if p.dim() == 1 and p.requires_grad], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    config = configuration(dtype, path, **more)
    return zeroshard.initialize(model=model, model_parameters=groups, config=config)[0]


def train_llama(engine, first, last, accumulation=1):
    return [models.take_step(engine, step, accumulation) for step in range(first, last)]


def values_of(engine):
    """As users read them: gathered, evaluated, and single states."""
    model = engine.module
    with zeroshard.gathered(model.parameters()):
        found = [param.detach().float().clone() for param in model.parameters()]
    model.eval()
    with torch.no_grad():
        found.append(engine(input_ids=models.tokens(99, 0, 2)).logits.float())
    model.train()
    for param in model.parameters():
        if param.requires_grad:
            found.append(zeroshard.get_master_weight(param))
    return found


def same(plain, swapped):
    return plain.parameter_digest() == swapped.parameter_digest() and all(
        torch.equal(a, b) for a, b in zip(values_of(plain), values_of(swapped), strict=True)
    )


def compare(folder, dtype, frozen, accumulation):
    def make_one(path=None):
        gradients = {"offload": {"gradients": "nvme"}} if path and not frozen and dtype != "fp16" else {}
        return make_llama_engine(dtype, path, frozen, states=not frozen, accumulation=accumulation, zeroshard=gradients)

    plain, swapped = make_one(), make_one([f"{folder}/one", f"{folder}/other"])
    assert same(plain, swapped)
    losses = [train_llama(engine, 0, STEPS, accumulation) for engine in (plain, swapped)]
    assert losses[0] == losses[1]
    assert same(plain, swapped)
    # Both ways through a checkpoint, and on from there.
    for engine, name in ((plain, "plain"), (swapped, "swapped")):
        engine.save_checkpoint(f"{folder}/{name}")
        engine.save_16bit_model(f"{folder}/{name}-model")
        train_llama(engine, STEPS, STEPS + 1, accumulation)
    swapped.load_checkpoint(f"{folder}/plain")
    plain.load_checkpoint(f"{folder}/swapped")
    assert same(plain, swapped)
    for engine in (plain, swapped):
        train_llama(engine, STEPS, STEPS + 2, accumulation)
        # What users write counts, of frozen parameters, too.
        with zeroshard.gathered(list(engine.module.parameters()), modify_rank=0):
            if world.rank() == 0:
                for param in engine.module.parameters():
                    param.data.mul_(1.25)
        trained = next(param for param in engine.module.parameters() if param.requires_grad)
        zeroshard.set_master_weight(trained, torch.full(trained.shape, 0.5))
        train_llama(engine, STEPS + 2, STEPS + 4, accumulation)
    assert same(plain, swapped)
    return plain.parameter_digest()


@pytest.mark.parametrize(
    "ranks,dtype,frozen,accumulation",
    [(1, "bf16", False, 1), (1, "fp32", True, 2), (2, "fp32", False, 3), (2, "bf16", True, 1), (3, "fp16", False, 1)],
)
def test_results_and_checkpoints_are_those_of_memory(tmp_path, ranks, dtype, frozen, accumulation):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    run = {"folder": str(tmp_path), "dtype": dtype, "frozen": frozen, "accumulation": accumulation}
    assert len(set(world.run(ranks, compare, **run))) == 1
    assert not os.listdir(tmp_path / "one")
    # The exported files have the same bytes.
    exported = [sorted((tmp_path / f"{name}-model").glob("*.safetensors")) for name in ("plain", "swapped")]
    assert exported[0]
    for plain, swapped in zip(*exported, strict=True):
        assert plain.read_bytes() == swapped.read_bytes()


def held(folder, most):
    engine = make_llama_engine("bf16", folder, most=most)
    train_llama(engine, 0, 2)
    report = engine.memory_report()
    assert models.held_as_planned(report["planned"], report["measured_peak"]), report
    return report


def test_parameters_leave_memory_but_for_those_that_may_stay(tmp_path):
    in_files, in_memory = (world.run(2, held, folder=str(tmp_path), most=most)[0] for most in (0, 10**9))
    # The model is so small that its buffers are as large as itself.
    moved_away = in_files["tiers"]["file"]["planned"] - in_memory["tiers"]["file"]["planned"]
    assert moved_away == in_files["planned"]["parameters"] == in_memory["planned"]["parameters"] > 0


def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def resident_after_steps(path):
    width = 1500
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(24)))
    for layer in model:
        layer.weight.requires_grad_(False)
    config = configuration("fp32", path, states=False)
    engine = zeroshard.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    for _ in range(3):
        engine.backward(engine(torch.ones(2, width)).square().mean())
        engine.step()
    return resident()


def test_a_frozen_model_is_not_resident(tmp_path):
    plain = world.run(1, resident_after_steps, path=None)[0]
    swapped = world.run(1, resident_after_steps, path=str(tmp_path))[0]
    # 216 MB of weights. Three units of 9 MB are gathered, and two may be on their way.
    assert plain - swapped > 130e6, (plain, swapped)


# -- how much is moved -------------------------------------------------------------------------------------------------


def moved_by_a_frozen_model(folder):
    seccomp.refuse_io_uring()
    model = torch.nn.Sequential(*(torch.nn.Linear(600, 600) for _ in range(6)))
    for layer in model:
        layer.weight.requires_grad_(False)
    config = configuration("bf16", folder, states=False)
    engine = zeroshard.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    file_bytes = engine.memory_report()["tiers"]["file"]["planned"]
    x = torch.ones(2, 600, dtype=torch.bfloat16)
    shares = []
    for _ in range(4):
        before = moved()
        engine.backward(engine(x).float().square().mean())
        engine.step()
        shares.append([(b - a) / file_bytes for a, b in zip(before, moved(), strict=True)])
    return shares


@pytest.mark.idle_ranks("biases alone are trained, so that all but nothing is written")
@pytest.mark.parametrize("ranks", [1, 2])
def test_frozen_parameters_are_read_and_never_written(tmp_path, ranks):
    for shares in world.run(ranks, moved_by_a_frozen_model, folder=str(tmp_path)):
        for read, written in shares[1:]:
            assert 0.3 < read < 2.1, shares  # once for forward and once for backward, if not still in a buffer
            assert written < 0.1, shares


# -- what cannot be ----------------------------------------------------------------------------------------------------


def refusals(folder):
    open(f"{folder}/file-{world.rank()}", "w").close()
    os.makedirs(f"{folder}/locked", exist_ok=True)
    said = []
    for path in ("/proc/missing", f"{folder}/file-0"):
        with pytest.raises(zeroshard.ConfigError) as error:
            make_llama_engine(path=path, states=False, frozen=True)
        said.append(str(error.value))
    train_llama(make_llama_engine(path=folder), 0, 1)  # afterwards all is well
    return said


@pytest.mark.row("D3")
def test_what_cannot_work_is_refused_on_every_rank(tmp_path):
    for missing, file in world.run(2, refusals, folder=str(tmp_path)):
        assert "offload_param.nvme_path: rank 0: cannot open the directory /proc/missing" in missing
        assert f"{tmp_path}/file-0: Not a directory" in file


# -- files that fail ---------------------------------------------------------------------------------------------------


def go_on_when_told(folder, frozen):
    swap, saves = f"{folder}/swap", f"{folder}/saves"
    engine = make_llama_engine("bf16", swap, frozen, states=not frozen, zeroshard={"timeout_s": 30})
    train_llama(engine, 0, 2)
    engine.save_checkpoint(saves)
    engine.wait_for_checkpoint()
    digest = engine.parameter_digest()
    print("ready.", flush=True)
    while not os.path.exists(f"{saves}/go"):
        time.sleep(0.005)
    begun = time.monotonic()
    said = ""
    try:
        train_llama(engine, 2, 6)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return [digest, said, time.monotonic() - begun]


def load(saves, frozen=False, dtype="bf16"):
    engine = make_llama_engine(dtype, None, frozen)
    engine.load_checkpoint(saves)
    return engine.parameter_digest()


@pytest.mark.row("D3")
@pytest.mark.parametrize("frozen", [False, True])
def test_the_nth_failing_call_ends_every_rank(tmp_path, frozen, release):
    strace.require()
    hit = 0
    for nth, error in enumerate(["EIO", "ENOSPC", "EDQUOT"] * (7 if release else 1)):
        folder = tmp_path / str(nth)
        (folder / "swap").mkdir(parents=True)
        trained = world.World(2, go_on_when_told, folder=str(folder), frozen=frozen)
        first = 1 + nth * (1 if release else 4)
        ends = strace.ends_after_failing_ring(trained, folder / "saves/go", error, first)
        if ends is None:
            continue
        hit += 1
        digest = strace.check_ends_of_failed_swap(ends, folder / "swap", END_S)
        if not frozen:
            assert world.run(2, load, saves=str(folder / "saves")) == [digest] * 2
    assert hit


def train_while_saving(folder, dtype, frozen):
    digests = {}
    for name, path in (("plain", None), ("swapped", f"{folder}/swap")):
        engine = make_llama_engine(dtype, path, frozen, states=not frozen)
        train_llama(engine, 0, 2)
        saved = engine.parameter_digest()
        engine.save_checkpoint(f"{folder}/{name}", tag="first")
        train_llama(engine, 2, 3)
        engine.save_checkpoint(f"{folder}/{name}", tag="second")
        train_llama(engine, 3, 5)
        digests[name] = saved, engine.parameter_digest()
    assert digests["plain"] == digests["swapped"]
    engine.wait_for_checkpoint()
    fresh = make_llama_engine(dtype, None, frozen)
    fresh.load_checkpoint(f"{folder}/swapped", tag="first")
    assert fresh.parameter_digest() == saved
    train_llama(fresh, 2, 5)
    return fresh.parameter_digest() == digests["swapped"][1]


@pytest.mark.parametrize(
    "ranks,dtype,frozen", [(1, "fp32", False), (2, "bf16", False), (3, "fp16", False), (2, "bf16", True)]
)
def test_a_save_in_the_background_has_the_state_of_its_step(tmp_path, ranks, dtype, frozen):
    (tmp_path / "swap").mkdir()
    assert world.run(ranks, train_while_saving, folder=str(tmp_path), dtype=dtype, frozen=frozen) == [True] * ranks


def memory_of_a_save(folder):
    """The bytes that a save in the background, with the next step beside it, takes beyond what a step takes."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(24)))
    config = configuration("fp32", f"{folder}/swap")
    engine = zeroshard.initialize(model=model, model_parameters=model.parameters(), config=config)[0]

    def step():
        engine.backward(engine(torch.ones(2, 1000)).square().mean())
        engine.step()

    def save():
        engine.save_checkpoint(f"{folder}/saves")
        step()
        engine.wait_for_checkpoint()

    step()
    without = peak_resident(step)
    more = peak_resident(save) - without
    return more, engine.memory_report()["tiers"]["file"]["planned"]


def test_a_save_in_the_background_takes_little_memory(tmp_path):
    (tmp_path / "swap").mkdir()
    [(more, in_files)] = world.run(1, memory_of_a_save, folder=str(tmp_path))
    assert more <= 64 << 20 < in_files / 4


def save_and_go_on(swap, saves, frozen):
    engine = make_llama_engine("fp32", swap, frozen, states=not frozen, buffers=1, zeroshard={"timeout_s": 30})
    return save_when_told(engine, saves, train_llama)


@pytest.mark.row("D3")
@pytest.mark.parametrize("frozen", [False, True])
def test_a_read_of_a_save_that_fails_ends_every_rank(tmp_path, frozen, release):
    check_failing_reads_of_saves(tmp_path, release, save_and_go_on, load, {"frozen": frozen}, {"dtype": "fp32"})


def load_into_damage(folder):
    engine = make_llama_engine("bf16", f"{folder}/swap", frozen=True, states=False, zeroshard={"timeout_s": 30})
    train_llama(engine, 0, 2)
    engine.save_checkpoint(f"{folder}/saves")
    engine.wait_for_checkpoint()
    if world.rank() == 1:
        damage_own_file(f"{folder}/swap")
    with pytest.raises(zeroshard.Error) as error:
        train_llama(engine, 2, 4)
    return str(error.value)


@pytest.mark.row("D3")
def test_damage_is_told_with_the_unit(tmp_path):
    (tmp_path / "swap").mkdir()
    for said in world.run(2, load_into_damage, folder=str(tmp_path), timeout_s=60):
        assert "the swap file in" in said and "parameters of group" in said and "of unit 'model" in said, said


def train_beside_states(folder, states, place, own_optimizer):
    """The digest before and after, and the bytes in files."""
    model = without_base(models.tiny_llama()).to(world.device())
    trained = [p for p in model.parameters() if p.requires_grad]
    config = configuration("fp32", folder, states=False)
    zero = config["zero_optimization"]
    zero["stage3_param_persistence_threshold"] = 0
    zero["offload_param"]["device"] = place
    zero["offload_optimizer"] = {"device": states}
    optimizer = None
    if own_optimizer:
        del config["optimizer"]
        config["zero_allow_untested_optimizer"] = True
        optimizer = torch.optim.RMSprop(trained, lr=1e-2)
    engine = zeroshard.initialize(model=model, model_parameters=trained, optimizer=optimizer, config=config)[0]
    in_files = engine.memory_report()["tiers"].get("file", {"planned": 0})["planned"]
    digests = [engine.parameter_digest()]
    train_llama(engine, 0, 2)
    digests.append(engine.parameter_digest())
    engine.destroy()
    return digests, in_files


@pytest.mark.parametrize("own_optimizer", [False, True], ids=["adamw", "own optimizer"])
@pytest.mark.parametrize("ranks,on", [simulated.case(1, "late"), simulated.case(2, "lazy")])
def test_parameters_in_files_leave_states_on_the_host_or_the_device(tmp_path, ranks, on, own_optimizer):
    """Master weights stay in memory for an optimizer of the user's, and where the device updates them."""
    options = {"folder": str(tmp_path), "own_optimizer": own_optimizer, "on": on}
    host, files, alone = (
        world.run(ranks, train_beside_states, states=states, place=place, **options)
        for states, place in (("cpu", "cpu"), ("cpu", "nvme"), ("none", "nvme"))
    )
    for (digests, _), (same, in_files), (on_device, of_frozen) in zip(host, files, alone, strict=True):
        assert digests == same == on_device and digests[0] != digests[1]
        assert of_frozen > 0 and in_files >= of_frozen
        assert (in_files > of_frozen) != own_optimizer
