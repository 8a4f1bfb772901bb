"""Checkpoints as scripts for DeepSpeed save and load them, and those that DeepSpeed wrote."""

import json
import os
import random
import shutil
import signal
import time

import models
import pytest
import torch
import world
import zeroshard
from built import TESTS
from data.convert.make_fixtures import STEPS, Net, batch, groups_of, loss_of
from safetensors.torch import load_file
from saved import checkpoints_in, manifest_of
from zeroshard.compat import checkpoint, zero_to_fp32
from zeroshard.compat.checkpoint import clone_tensors_for_torch_save
from zeroshard.convert import convert

pytestmark = pytest.mark.idle_ranks("trains the model of DeepSpeed's checkpoints in data/convert")
DATA = TESTS / "data" / "convert"
STAGING = "checkpoint staging"


def engine_of(stage=3, dtype="fp32", groups=False, model=None, **blocks):
    model = model or Net()
    blocks = {"optimizer": models.adamw(1e-2)} | blocks
    config = models.configuration(stage, dtype, **blocks)
    return zeroshard.initialize(model=model, model_parameters=groups_of(model) if groups else None, config=config)[0]


def train_on_batches(engine, steps=1):
    for step in range(steps):
        engine.backward(loss_of(engine, batch(step, engine.rank())))
        engine.step()


# -- saving ------------------------------------------------------------------------------------------------------------


def save_once(root, **blocks):
    engine = engine_of(**blocks)
    train_on_batches(engine, 2)
    result = checkpoint.save(engine._run, root, client_state={"epoch": 3})
    there = (
        sorted(os.listdir(root)) if world.rank() == 0 and os.path.isdir(root) else None
    )  # no wait: Trainer deletes the one before now
    staged = engine.memory_report()["measured_peak"].get(STAGING, 0)
    engine.wait_for_checkpoint()
    return result, there, staged > 0


@pytest.mark.parametrize("asked,staged", [(None, False), (False, False), (True, True)])
def test_a_save_is_committed_when_it_returns(tmp_path, asked, staged):
    blocks = {} if asked is None else {"zeroshard": {"checkpoint": {"async": asked}}}
    (result, there, was_staged), _ = world.run(2, save_once, root=str(tmp_path / "run"), **blocks)
    assert (result, was_staged) == (True, staged)
    if not staged:
        assert there == [".lock", "global_step2", "latest", "zero_to_fp32.py"]
    assert (tmp_path / "run" / "latest").read_text().strip() == "global_step2"
    assert manifest_of(tmp_path / "run", "global_step2")["state"]["front"]["client"] == {"epoch": 3}


def two_models(root):
    """As Accelerate's save_state with two models, twice into one directory."""
    engines = [engine_of(stage=stage) for stage in (2, 3)]
    tags = ["pytorch_model", "pytorch_model_1"]
    for steps in (1, 2):
        for engine, tag in zip(engines, tags, strict=True):
            train_on_batches(engine, steps)
            checkpoint.save(engine._run, root, tag)
    saved = [engine.parameter_digest() for engine in engines]
    for engine in engines:
        train_on_batches(engine, 1)
    found = [checkpoint.load(engine._run, root, tag)[0] for engine, tag in zip(engines, tags, strict=True)]
    return found, saved, [engine.parameter_digest() for engine in engines], [engine.global_steps for engine in engines]


def test_two_models_in_one_directory(tmp_path):
    for found, saved, loaded, steps in world.run(2, two_models, root=str(tmp_path)):
        assert found == [f"{tmp_path}/pytorch_model", f"{tmp_path}/pytorch_model_1"]
        assert loaded == saved
        assert steps == [3, 3]
    assert checkpoints_in(tmp_path) == ["latest", "pytorch_model", "pytorch_model_1", "zero_to_fp32.py"]


class Odd:
    pass


def save_odd(root):
    engine = engine_of()
    train_on_batches(engine)
    said = []
    for state in ({"a": [1, {"b": Odd()}]}, {"f": print}, {"s": {1, 2}}):
        state = state if world.rank() == 0 else {}
        try:
            checkpoint.save(engine._run, root, client_state=state)
        except ValueError as error:
            said.append(str(error))
    left = os.listdir(root) if os.path.isdir(root) else []
    checkpoint.save(engine._run, root, client_state={"a": torch.ones(2), "b": (1, None, float("inf"))})
    return said, left


def test_client_state_that_is_no_plain_data(tmp_path):
    ranks = world.run(2, save_odd, root=str(tmp_path / "run"))
    for said, _ in ranks:
        assert len(said) == 3
        for text, place in zip(
            said, ("client.client.a[1].b is an Odd", "client.f is a builtin", "s is a set"), strict=True
        ):
            assert place in text and "numbers, text, tensors, lists, tuples and dicts" in text
    assert ranks[0][1] == []
    assert checkpoints_in(tmp_path / "run") == ["global_step1", "latest", "zero_to_fp32.py"]


def save_where_the_script_cannot_be(root):
    os.makedirs(os.path.join(root, "zero_to_fp32.py", "of another"))
    engine = engine_of()
    train_on_batches(engine)
    return checkpoint.save(engine._run, root)


def test_a_script_that_cannot_be_written_is_a_warning(tmp_path):
    (rank,) = world.run_ranks(1, save_where_the_script_cannot_be, root=str(tmp_path / "run"))
    assert rank.value is True
    assert "warning: cannot write zero_to_fp32.py" in rank.log
    assert "global_step1" in os.listdir(tmp_path / "run")
    assert not [name for name in os.listdir(tmp_path / "run") if name.startswith(".zero_to_fp32")]


def save_and_rotate(root):
    """As Trainer with save_total_limit=1: each save has a directory of its own, and the one before goes at once."""
    engine = engine_of(model=models.stack(width=64), stage=3)
    before = None
    for number in range(10_000):
        folder = os.path.join(root, f"checkpoint-{number}")
        print(f"saving {number}", flush=True)
        checkpoint.save(engine._run, folder)
        if before is not None and world.rank() == 0:
            shutil.rmtree(before)
        before = folder


def test_a_whole_checkpoint_is_always_there(tmp_path, release):
    for instant in range(20 if release else 4):
        root = tmp_path / str(instant)
        chance = random.Random(instant)
        running = world.World(2, save_and_rotate, root=str(root))
        try:
            running.wait_for(f"saving {2 + instant}\n")
            time.sleep(chance.random() * 0.02)  # any instant of a save
            for rank in chance.sample(range(2), 2):
                os.kill(running.pids[rank], signal.SIGKILL)
            running.join()
        finally:
            running.kill()
        whole = []
        for folder in sorted(root.iterdir()):
            try:
                zeroshard._C.StoredCheckpoint(str(folder))
                whole.append(folder)
            except (ValueError, zeroshard.Error):
                continue
        assert whole, sorted(root.rglob("*"))
        for folder in whole:
            zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder)


# -- loading what DeepSpeed wrote --------------------------------------------------------------------------------------

FOREIGN = {"ds1_fp16": "ds1_fp16", "ds2_bf16": "ds2_bf16", "ds3_fp32": "ds3_fp32", "ds3_groups": "ds3_groups"}
FOREIGN |= {"universal2_groups": "ds2_groups", "universal3_fp32": "ds3_fp32"}


def resume(root, cases):
    return [resume_one(os.path.join(root, name), name, **case) for name, case in cases]


def resume_one(root, name, stage, module_only=False, tag=None):
    blocks = {"optimizer": models.adamw(1e-2, weight_decay=0.01), "gradient_clipping": 1.0}
    blocks["scheduler"] = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 10}}
    model = Net()
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(7.0)  # nothing is right by chance
    dtype = "fp16" if "fp16" in name else "fp32" if "fp32" in name else "bf16"
    engine = engine_of(stage, dtype, groups="groups" in name, model=model, **blocks)
    path, client = checkpoint.load(engine._run, root, tag, load_module_only=module_only)
    steps = engine.global_steps
    with zeroshard.gathered(list(model.parameters())):
        weights = {key: value.detach().float().tolist() for key, value in model.named_parameters()}
    losses = []
    for step in range(STEPS, 2 * STEPS):
        loss = loss_of(engine, batch(step, engine.rank()))
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        if engine.world_size() > 1:
            torch.distributed.all_reduce(total)
        losses.append(total.item() / engine.world_size())
    return path, client, steps, weights, losses


@pytest.fixture
def foreign(tmp_path):
    for name in FOREIGN:
        shutil.copytree(DATA / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_checkpoints_of_deepspeed(foreign, ranks):
    before = {name: sorted(os.listdir(foreign / name)) for name in FOREIGN}
    cases = [(name, {"stage": (index + ranks) % 4}) for index, name in enumerate(FOREIGN)]
    for results in world.run(ranks, resume, root=str(foreign), cases=cases):
        for (name, _), (path, client, steps, weights, losses) in zip(cases, results, strict=True):
            assert os.path.dirname(path) == str(foreign / name)
            assert client["note"] == "hi" and client["epoch"] == 4
            assert steps == STEPS
            reported = load_file(DATA / f"{FOREIGN[name]}.safetensors")
            precision = torch.float16 if "fp16" in name else torch.float32 if "fp32" in name else torch.bfloat16
            for key, value in weights.items():
                if f"weight/{key}" in reported:
                    expected = reported[f"weight/{key}"].to(precision).float()
                    assert torch.equal(torch.tensor(value).reshape(expected.shape), expected), (name, key)
            if ranks == (3 if "groups" in name else 2):  # as many as wrote it: the losses go on as they did there
                expected = json.loads((DATA / f"{FOREIGN[name]}.json").read_text())["losses"]
                assert losses == pytest.approx(expected, rel=1e-5 if "fp32" in name else 2e-2), (
                    name
                )  # as in test_convert.py
    assert {name: sorted(os.listdir(foreign / name)) for name in FOREIGN} == before  # nothing is left behind


def test_the_module_alone_and_by_its_tag(foreign):
    cases = [("ds2_bf16", {"stage": 3, "module_only": True, "tag": "global_step3"})]
    for ((path, client, steps, *_),) in world.run(2, resume, root=str(foreign), cases=cases):
        assert path == str(foreign / "ds2_bf16" / "global_step3")
        assert (client["note"], steps) == ("hi", 0)


def load_by_tag(root, tags):
    engine = engine_of()
    try:
        checkpoint.load(engine._run, root, tags[world.rank()])
    except (ValueError, zeroshard.Error) as error:
        return str(error)
    return None


def test_ranks_that_ask_for_different_things(foreign):
    tags = ["global_step3", "nothing"]
    said = world.run(2, load_by_tag, root=str(foreign / "ds2_bf16"), tags=tags)
    assert all("all ranks must see the same files" in text for text in said)
    assert sorted(os.listdir(foreign / "ds2_bf16")) == ["global_step3", "latest"]


def test_a_damaged_checkpoint_of_deepspeed(foreign):
    (foreign / "ds2_bf16" / "global_step3" / "mp_rank_00_model_states.pt").write_bytes(b"no zip file")
    said = world.run(2, load_by_tag, root=str(foreign / "ds2_bf16"), tags=[None, None])
    assert all("mp_rank_00_model_states.pt" in text for text in said)
    assert sorted(os.listdir(foreign / "ds2_bf16")) == ["global_step3", "latest"]


def test_which_checkpoint_is_meant(foreign):
    both = foreign / "ds3_fp32"
    shutil.copytree(foreign / "universal3_fp32", both, dirs_exist_ok=True)
    plain, universal = str(both / "global_step3"), str(both / "global_step3_universal")
    assert checkpoint.find_deepspeed(str(both)) == plain
    assert checkpoint.find_deepspeed(str(both), universal_first=True) == universal
    assert checkpoint.find_deepspeed(str(both), "global_step3_universal") == universal
    assert checkpoint.find_deepspeed(str(both), "nothing") is None
    os.mkdir(both / "ours")
    (both / "ours" / "manifest.json").write_text("")
    (both / "latest").write_text("ours")
    assert checkpoint.find_deepspeed(str(both)) is None
    assert checkpoint.find_deepspeed(str(both), "global_step3") == plain
    (both / "latest").unlink()
    os.mkfifo(both / "latest")  # whoever opens it waits
    assert checkpoint.find_deepspeed(str(both)) == universal
    stage0 = foreign / "ds2_bf16" / "global_step3"
    for file in stage0.glob("*_optim_states.pt"):
        file.unlink()
    for tag in (None, "global_step3"):
        with pytest.raises(ValueError, match="global_step3 has DeepSpeed's .* those of stage 0 are not"):
            checkpoint.find_deepspeed(str(foreign / "ds2_bf16"), tag)


def test_a_universal_checkpoint_with_a_wrong_part(foreign, tmp_path):
    source = foreign / "universal3_fp32" / "global_step3_universal"
    shutil.copy(source / "zero" / "gain" / "fp32.pt", source / "zero" / "up.bias" / "exp_avg.pt")
    with pytest.raises(ValueError, match=r"up.bias/exp_avg.pt has 1 elements, and the parameter has the shape \[5\]"):
        convert(source, tmp_path / "out")
    shutil.rmtree(source / "zero" / "gain")
    with pytest.raises(ValueError, match="the parameter 'gain' has no directory in zero/"):
        convert(source, tmp_path / "out")
    (source / "zero_pp_rank_0_mp_rank_00_model_states.pt").unlink()
    with pytest.raises(ValueError, match=r"the model states of the ranks \[1\]: some are missing"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [name for name in FOREIGN if "universal" in name])
def test_all_values_of_universal_checkpoints(name, tmp_path):
    path, notes = convert(DATA / name, tmp_path)
    assert notes == []
    stored = zeroshard._C.StoredCheckpoint(path)
    kinds = {f"{tensor.kind}/{tensor.name}": tensor for tensor in stored.tensors}
    expected = load_file(DATA / f"{FOREIGN[name]}.safetensors")
    assert {key.partition("/")[0] for key in expected} >= {"weight", "exp_avg", "exp_avg_sq"} or "groups" in name
    for key, value in expected.items():
        out = torch.empty(kinds[key].shape)
        stored.read(kinds[key].name, kinds[key].kind, dtype="F32", out=out)
        assert torch.equal(out, value), key
    updates = {tensor["updates"] for tensor in manifest_of(path)["tensors"] if tensor["trainable"]}
    assert updates == {STEPS}


def load_nothing(root):
    engine = engine_of()
    return checkpoint.load(engine._run, root)


def test_nothing_to_load(tmp_path):
    assert world.run(2, load_nothing, root=str(tmp_path)) == [[None, None]] * 2


def resume_and_save(root):
    engine = engine_of(dtype="bf16")
    checkpoint.load(engine._run, root)
    train_on_batches(engine)
    checkpoint.save(engine._run, root)
    return checkpoint.load(engine._run, root)[0]


def test_a_run_that_goes_on_in_deepspeeds_directory(foreign):
    root = str(foreign / "ds2_bf16")
    assert world.run(2, resume_and_save, root=root) == [f"{root}/global_step4"] * 2


# -- clones ------------------------------------------------------------------------------------------------------------


def test_clones_have_memory_of_their_own():
    from collections import Counter, OrderedDict, defaultdict, namedtuple

    from zeroshard.compat.runtime_utils import move_to_device

    Pair = namedtuple("Pair", ["one", "other"])  # noqa: PYI024
    whole = torch.arange(100.0)
    part = whole[10:20].requires_grad_()
    item = OrderedDict(a=[part, 1], b=(part, "x"), c=Pair(part, None), d=torch.tensor(3))
    item["e"], item["g"] = defaultdict(list, f=part), Counter("aab")
    copy = clone_tensors_for_torch_save(item)
    assert isinstance(copy, OrderedDict) and isinstance(copy["c"], Pair)
    for clone in (copy["a"][0], copy["b"][0], copy["c"].one):
        assert torch.equal(clone, part)
        assert not clone.requires_grad
        assert clone.untyped_storage().nbytes() == 40
        assert clone.data_ptr() != part.data_ptr()
    assert (copy["a"][1], copy["b"][1], copy["c"].other, copy["d"].item()) == (1, "x", None, 3)
    assert copy["e"]["f"].data_ptr() != part.data_ptr() and copy["e"]["absent"] == []
    assert copy["g"] == {"a": 2, "b": 1}
    assert clone_tensors_for_torch_save(part, "meta").device.type == "meta"
    moved = move_to_device(item["c"], "meta")
    assert isinstance(moved, Pair) and moved.one.is_meta and moved.other is None
