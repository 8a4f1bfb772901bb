"""Import of checkpoints that DeepSpeed and PyTorch DCP wrote (data/convert), by a reader that runs nothing."""

import contextlib
import io
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import world
import zeroshard
from built import TESTS, ZEROSHARD, needs
from data.convert.make_fixtures import STEPS, Net, batch, groups_of, loss_of
from safetensors import safe_open
from safetensors.torch import load_file
from saved import manifest_of
from zeroshard.convert import convert
from zeroshard.importing import pickles

pytestmark = pytest.mark.idle_ranks("trains the model of DeepSpeed's checkpoints in data/convert")
DATA = TESTS / "data" / "convert"
DEEPSPEED = ["ds1_fp16", "ds2_bf16", "ds3_fp32", "ds2_groups", "ds3_groups"]  # groups: 2 of them, 3 ranks, bf16
ALL = [*DEEPSPEED, "dcp"]
BUFFERS = ["mean", "count"]


def values(path):
    """The tensors of a checkpoint of one rank as KIND/NAME, by safetensors' own reader."""
    manifest = manifest_of(path)
    found = {}
    with safe_open(os.path.join(path, "rank-00000.safetensors"), "pt") as file:
        stored = {key.rpartition("[")[0]: key for key in file.keys()}  # noqa: SIM118
        for tensor in manifest["tensors"]:
            key = f"{tensor['kind']}/{tensor['name']}"
            found[key] = file.get_tensor(stored[key]).view(tensor["shape"])
    return found


def reported(name):
    return load_file(DATA / f"{name}.safetensors")


def converted(name, out):
    return convert(DATA / name, out, buffers=BUFFERS)


@pytest.mark.row("W3")
@pytest.mark.parametrize("name", ALL)
def test_values_are_those_that_the_writer_reports(name, tmp_path):
    path, _ = converted(name, tmp_path)
    assert path == str(tmp_path / f"global_step{STEPS}")
    found = values(path)
    expected = reported(name)
    assert len(expected) >= (5 if name == "ds2_groups" else 15)
    for key, value in expected.items():
        if key.removeprefix("weight/") in BUFFERS:
            key = f"buffer/{key.removeprefix('weight/')}"
        assert torch.equal(found[key], value), key
    assert torch.equal(found["buffer/mean"], torch.linspace(0, 1, 7))
    assert torch.equal(found["buffer/count"], torch.tensor(42))
    frozen = Net().frozen.detach()
    assert torch.equal(found["weight/frozen"], frozen.to(found["weight/frozen"].dtype))
    kinds = {key.partition("/")[0] for key in found}
    assert kinds == {"weight", "exp_avg", "exp_avg_sq", "buffer"}
    by_name = {tensor["name"]: tensor for tensor in manifest_of(path)["tensors"] if tensor["kind"] == "weight"}
    assert by_name["embed.weight"]["aliases"] == ["head.weight"]
    assert "head.weight" not in by_name
    assert {name: tensor["updates"] for name, tensor in by_name.items()} == {
        name: 0 if name == "frozen" else STEPS for name in by_name
    }


@pytest.mark.parametrize("name", DEEPSPEED)
def test_state_of_deepspeed(name, tmp_path):
    path, notes = convert(DATA / name, tmp_path)
    assert notes == []
    state = manifest_of(path)["state"]
    front = state["front"]
    assert front["client"] == {"epoch": 4, "note": "hi", "best": {"__tuple__": [1.5, None]}}
    assert front["lr_scheduler"] == {"last_batch_iteration": STEPS - 1}
    assert (front["global_steps"], front["global_samples"], front["skipped_steps"]) == (
        STEPS,
        (6 if "groups" in name else 4) * STEPS,
        0,
    )
    decays = [0.1, 0.0] if "groups" in name else [0.01]
    assert [group["weight_decay"] for group in front["param_groups"]] == decays
    if name == "ds1_fp16":
        assert state["core"]["loss_scale"] == 512.0
        assert state["core"]["loss_scale_iteration"] == STEPS
        assert state["core"]["loss_scale_hysteresis_left"] == 2


def continue_training(root, cases):
    """Losses of the steps after the import, by case."""
    return [continue_one(root, **case) for case in cases]


def continue_one(root, name, stage):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01}},
        "zero_optimization": {"stage": stage},
        "zeroshard": {"timeout_s": 30},
    }
    if name != "dcp":
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 10}}
        config["gradient_clipping"] = 1.0  # DeepSpeed's default
        precision = name.partition("_")[2].replace("groups", "bf16")
        config |= {precision: {"enabled": True}} if precision != "fp32" else {}
    model = Net()
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(7.0)  # nothing is right by chance
    groups = groups_of(model) if "groups" in name else None
    engine, *_ = zeroshard.initialize(model=model, model_parameters=groups, config=config)
    path, client = engine.load_checkpoint(os.path.join(root, name), strict=True)
    assert path is not None and client["note"] == "hi"
    assert engine.global_steps == STEPS
    losses = []
    for step in range(STEPS, 2 * STEPS):
        loss = loss_of(engine, batch(step, engine.rank()))
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / engine.world_size())
    return losses


@pytest.mark.row("W3")
@pytest.mark.parametrize("ranks", [2, 3])
def test_training_goes_on_as_it_did(tmp_path, ranks):
    names = [name for name in ALL if ("groups" in name) == (ranks == 3)]
    for name in names:
        converted(name, tmp_path / name)
    cases = [{"name": name, "stage": stage} for name in names for stage in (1, 3)]
    for results in world.run(ranks, continue_training, root=str(tmp_path), cases=cases):
        for case, losses in zip(cases, results, strict=True):
            expected = json.loads((DATA / f"{case['name']}.json").read_text())["losses"]
            # fp32: another order of sums. 16 bits: the first loss is of the same weights, later ones round otherwise.
            tolerance = 1e-5 if case["name"] in ("ds3_fp32", "dcp") else 2e-2
            assert losses == pytest.approx(expected, rel=tolerance), case
            assert losses[0] == pytest.approx(expected[0], rel=1e-5 if tolerance == 1e-5 else 4e-3), case


# -- other ways to save with DCP -------------------------------------------------------------------------------------


def save_with_dcp(folder, what):
    """The model and its moments after a step, saved by this process alone."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    model = Net()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    loss_of(model, batch(0, 0)).backward()
    optimizer.step()
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    state = {
        "flattened": lambda: dict(zip(("model", "optim"), get_state_dict(model, optimizer, options=flat), strict=True)),
        "numbered": lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
        "weights": model.state_dict,
    }[what]()
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    moments = {param: optimizer.state[param] for param in optimizer.param_groups[0]["params"]}
    return model, moments


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("what", ["flattened", "numbered", "weights"])
def test_other_forms_of_dcp(tmp_path, what):
    model, moments = save_with_dcp(tmp_path / "source", what)
    path, notes = convert(tmp_path / "source", tmp_path / "out", buffers=BUFFERS)
    found = values(path)
    expected = {f"weight/{name}": param.detach() for name, param in model.named_parameters()}
    expected |= {f"buffer/{name}": buffer for name, buffer in model.named_buffers()}
    if what == "flattened":
        for name, param in model.named_parameters():
            if param in moments:
                expected |= {f"{kind}/{name}": moments[param][kind] for kind in ("exp_avg", "exp_avg_sq")}
    else:  # without moments nothing tells that a parameter is tied
        expected["weight/head.weight"] = model.head.weight.detach()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key
    assert any("numbers its parameters" in note for note in notes) == (what == "numbered")
    assert any("frozen" in note for note in notes) == (what == "flattened")


# -- sources that are not whole --------------------------------------------------------------------------------------


def copy_of(name, tmp_path):
    return Path(shutil.copytree(DATA / name, tmp_path / "source"))


def test_a_missing_rank_is_named(tmp_path):
    source = copy_of("ds3_fp32", tmp_path)
    (source / "global_step3" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(ValueError, match="of 2 ranks, and has the files of 1"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_that_float32_cannot_hold_are_refused(tmp_path):
    import torch.distributed.checkpoint as dcp

    for index, value in enumerate((1e300, float("inf"))):
        weights = {"a": torch.tensor([1.0, value], dtype=torch.float64)}
        dcp.save({"model": weights}, checkpoint_id=str(tmp_path / f"source{index}"), no_dist=True)
    with pytest.raises(ValueError, match=r"'model\.a' has the value 1e\+300, which torch\.float32 cannot hold"):
        convert(tmp_path / "source0", tmp_path / "out0")
    assert not list(tmp_path.glob("out0/global_step*"))
    path, _ = convert(tmp_path / "source1", tmp_path / "out1")
    assert values(path)["weight/a"].tolist() == [1.0, float("inf")]


def test_a_missing_piece_of_dcp_is_an_error(tmp_path):
    source = copy_of("dcp", tmp_path)
    (source / "__1_0.distcp").write_bytes((source / "__1_0.distcp").read_bytes()[:40000])
    with pytest.raises(ValueError, match="__1_0.distcp has 40000 bytes"):
        convert(source, tmp_path / "out")
    assert not list(Path(tmp_path).glob("out/global_step*"))


def test_truncated_files_are_errors(tmp_path):
    source = copy_of("ds2_bf16", tmp_path)
    victim = next((source / "global_step3").glob("*rank_1*optim*"))
    whole = victim.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 30):
        victim.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=f"{victim.name} is empty" if size == 0 else victim.name):
            convert(source, tmp_path / "out")


def test_an_earlier_checkpoint_is_not_replaced(tmp_path):
    path, _ = converted("ds2_bf16", tmp_path)
    before = manifest_of(path)
    with pytest.raises(ValueError, match=f"{path} is a checkpoint already, .* another output directory"):
        converted("dcp", tmp_path)
    assert manifest_of(path) == before
    convert(DATA / "dcp", tmp_path, tag="other", buffers=BUFFERS)


def test_other_directories_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint that can be imported"):
        convert(tmp_path, tmp_path / "out")
    (tmp_path / "latest").write_text("../../etc")
    with pytest.raises(ValueError, match="no checkpoint that can be imported"):
        convert(tmp_path, tmp_path / "out")


def test_flipped_bytes_are_errors_or_other_values(tmp_path):
    """Their formats have no checksums; whatever comes, it is a ValueError or a checkpoint."""
    generator = random.Random(1)
    for name in ("ds3_groups", "ds1_fp16", "dcp"):
        shutil.rmtree(tmp_path / "source", ignore_errors=True)
        source = copy_of(name, tmp_path)
        victims = sorted(path for path in source.rglob("*") if path.is_file() and path.name != "latest")
        for _ in range(25):
            victim = generator.choice(victims)
            good = victim.read_bytes()
            flipped = bytearray(good)
            flipped[generator.randrange(len(good))] ^= 1 << generator.randrange(8)
            victim.write_bytes(flipped)
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            with contextlib.suppress(ValueError):
                path, _ = convert(source, tmp_path / "out")
                assert os.path.exists(os.path.join(path, "manifest.json"))
            victim.write_bytes(good)


# -- hostile pickles -------------------------------------------------------------------------------------------------


class Calls:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *arguments, state=None):
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call


def global_of(name):
    module, _, attribute = name.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def hostile(witness):
    """Pickles that make the file ``witness`` when the standard unpickler loads them, and how."""
    command, code = f"touch {witness}", f"open({witness!r}, 'w')"
    call = pickle.dumps((code,), 0)[:-1]
    return {
        "os.system": pickle.dumps(Calls(os.system, command)),
        "eval": pickle.dumps(Calls(eval, code)),
        "exec": pickle.dumps(Calls(exec, code), 0),
        "nested": pickle.dumps({"module": [(1, {"x": Calls(os.system, command)})]}),
        "popen": pickle.dumps(Calls(subprocess.check_call, ["touch", witness])),
        "as state": pickle.dumps(Calls(dict, state={"x": Calls(os.system, command)})),
        "as key": pickle.dumps({Calls(os.system, command): 1}),
        "opcode INST": b"(" + pickle.dumps(code, 0)[:-1] + b"ibuiltins\neval\n.",
        "opcode OBJ": b"(" + global_of("builtins.eval") + pickle.dumps(code, 0)[:-1] + b"o.",
        "opcode STACK_GLOBAL": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + call + b"R.",
        "dotted": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + pickle.dumps((command,), 0)[:-1] + b"R.",
    }


@pytest.fixture
def witness(tmp_path):
    return str(tmp_path / "executed")


def test_the_hostile_pickles_are_hostile(witness):
    for name, data in hostile(witness).items():
        with contextlib.suppress(AttributeError):  # after it was run
            pickle.loads(data)
        assert os.path.exists(witness), name
        os.unlink(witness)


@pytest.mark.row("X4")
def test_hostile_pickles_run_nothing(witness):
    for name, data in hostile(witness).items():
        with contextlib.suppress(ValueError):
            pickles.load_pickle(data, "x")
        assert not os.path.exists(witness), name


def archive_of(path, data):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)


@pytest.mark.row("X4")
def test_hostile_checkpoints_run_nothing(tmp_path, witness):
    for name, data in hostile(witness).items():
        for kind, victim in (("ds2_bf16", "global_step3/mp_rank_00_model_states.pt"), ("dcp", ".metadata")):
            shutil.rmtree(tmp_path / "source", ignore_errors=True)
            source = copy_of(kind, tmp_path)
            if kind == "dcp":
                (source / victim).write_bytes(data)
            else:
                archive_of(source / victim, data)
            with pytest.raises(ValueError):
                convert(source, tmp_path / "out")
            assert not os.path.exists(witness), (name, kind)


def test_an_object_in_client_state_is_left_out_and_named(tmp_path, witness):
    source = copy_of("ds3_fp32", tmp_path)
    victim = source / "global_step3" / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    saved = torch.load(victim, weights_only=True)
    torch.save({**saved, "evil": [Calls(os.system, f"touch {witness}")]}, victim)
    path, notes = convert(source, tmp_path / "out")
    assert not os.path.exists(witness)
    assert len(notes) == 1 and "client state 'evil'" in notes[0] and "system" in notes[0]
    assert manifest_of(path)["state"]["front"]["client"]["epoch"] == 4


def test_names_cannot_be_changed_by_a_pickle():
    """BUILD on what a name stands for must neither stay nor help: the next file is read as ever."""
    for name in ("torch._utils._rebuild_tensor_v2", "collections.OrderedDict", "os.system", "torch.FloatStorage"):
        for state in ({"function": 1, "__setstate__": 2, "class_name": 3}, (None, {"function": 1, "__call__": 2})):
            data = global_of(name) + pickle.dumps(state, 0)[:-1] + b"b."
            with contextlib.suppress(ValueError):
                pickles.load_pickle(data, "x")
    assert torch.equal(pickles.load_file(DATA / "ds2_bf16/global_step3/mp_rank_00_model_states.pt")["module"]["mean"],
                       torch.linspace(0, 1, 7))  # fmt: skip


def test_tensors_outside_their_storage_are_errors(tmp_path):
    for size, stride, offset in [((9,), (1,), 0), ((4,), (1,), 1), ((2, 2), (3, 1), 0), ((2,), (-1,), 1)]:
        tensor = torch.zeros(4)
        torch.save(tensor, tmp_path / "good.pt")
        call = Calls(torch._utils._rebuild_tensor_v2, _Stored(tensor), offset, size, stride, False, {})
        write_archive(tmp_path / "bad.pt", tmp_path / "good.pt", call)
        with pytest.raises(ValueError):
            pickles.load_file(tmp_path / "bad.pt")


class _Stored:
    def __init__(self, tensor):
        self.numel = tensor.numel()


def write_archive(path, model, value):
    """``value`` pickled over the storage of the archive ``model``."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, item):
            return ("storage", torch.FloatStorage, "0", "cpu", item.numel) if isinstance(item, _Stored) else None

    out = io.BytesIO()
    Pickler(out, 2).dump(value)
    with zipfile.ZipFile(model) as source, zipfile.ZipFile(path, "w") as archive:
        for record in source.namelist():
            archive.writestr(record, out.getvalue() if record.endswith("data.pkl") else source.read(record))


# -- the command -----------------------------------------------------------------------------------------------------


@needs(ZEROSHARD)
def test_command(tmp_path):
    out = str(tmp_path / "out")
    run = [ZEROSHARD, "checkpoint", "convert", str(DATA / "dcp"), out, "--tag", "begin", "--buffer", "mean"]
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "out" / "begin")
    assert "whether frozen are frozen parameters" in done.stderr and "mean" not in done.stderr
    verified = subprocess.run([ZEROSHARD, "checkpoint", "verify", tmp_path / "out" / "begin"], capture_output=True)
    assert verified.returncode == 0, verified.stderr
    run[3] = str(tmp_path)
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 2 and "no checkpoint that can be imported" in done.stderr


@needs(ZEROSHARD)
def test_an_import_does_not_replace_what_it_reads(tmp_path):
    run = Path(shutil.copytree(DATA / "ds2_bf16", tmp_path / "run"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    command = [ZEROSHARD, "checkpoint", "convert", str(run), str(run)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 2 and f"{run}/global_step3 is no checkpoint of zeroshard" in done.stderr, done.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@needs(ZEROSHARD)
@pytest.mark.row("D2")
@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (8192, "cannot reserve space in disk/out: No space left on device; the import needs "),
        (4096, "cannot reserve space for disk/out/.tmp-global_step3"),
    ],
)
def test_a_disk_without_room(tmp_path, used, expected):
    """For the tensors put together, or for the checkpoint beside them; nothing stays behind."""
    script = (
        f"mkdir disk; mount -t tmpfs -o size=8k tmpfs disk && head -c {used} /dev/zero > disk/used && echo mounted;"
    )
    command = [ZEROSHARD, "checkpoint", "convert", DATA / "ds2_bf16", "disk/out"]
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script + ' "$@"; code=$?; ls -A disk/out; exit $code', "-", *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "VIRTUAL_ENV": sys.prefix},
        timeout=120,
    )
    if not done.stdout.startswith("mounted"):
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    assert done.returncode == 1 and expected in done.stderr, done.stderr
    assert re.search(r"needs \d+ bytes.*, \d+ are free\. Free some space there", done.stderr), done.stderr
    assert done.stdout == "mounted\n"
