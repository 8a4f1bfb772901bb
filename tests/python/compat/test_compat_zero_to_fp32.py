"""``zero_to_fp32``: the fp32 weights of checkpoints, of zeroshard's and of DeepSpeed's, without an engine."""

import os
import shutil
import subprocess
import sys

import models
import pytest
import torch
import world
import zeroshard
from built import TESTS
from data.convert.make_fixtures import Net
from safetensors.torch import load_file
from saved import manifest_of
from zeroshard.compat import checkpoint, zero_to_fp32

pytestmark = pytest.mark.idle_ranks("trains the model of DeepSpeed's checkpoints in data/convert")
DATA = TESTS / "data" / "convert"
# The fixture, and the one whose file has what its writer reported.
FOREIGN = {"ds1_fp16": "ds1_fp16", "ds2_groups": "ds2_groups", "ds3_fp32": "ds3_fp32"}
FOREIGN |= {"universal2_groups": "ds2_groups", "universal3_fp32": "ds3_fp32"}


def train_and_save(root, stage, dtype, steps):
    config = models.configuration(stage, dtype, optimizer=models.adamw(1e-2))
    engine, *_ = zeroshard.initialize(model=Net(), config=config)
    for step in range(steps):
        ids = torch.arange(8).view(2, 4) + step % 3
        engine.backward(engine(ids).float().square().mean())
        engine.step()
        checkpoint.save(engine._run, root)
    return engine.global_steps


def weights_of(root, out):
    """The masters of the newest checkpoint, by the command line's export."""
    zeroshard._C.export_weights(root, out, dtype="F32", max_file_bytes=10**9)
    return load_file(os.path.join(out, "model.safetensors"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved") / "run"
    assert world.run(2, train_and_save, root=str(root), stage=3, dtype="bf16", steps=2) == [2, 2]
    return root


def test_a_link_in_place_of_the_script_stays(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / checkpoint.SCRIPT).symlink_to(tmp_path / "mine")
    assert world.run(1, train_and_save, root=str(tmp_path / "run"), stage=1, dtype="fp32", steps=1) == [1]
    assert (tmp_path / "run" / checkpoint.SCRIPT).is_symlink() and (tmp_path / "mine").read_text() == "mine"


def test_the_state_has_every_name_of_the_model(saved, tmp_path):
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved)
    model = Net()
    assert state.keys() == model.state_dict().keys()
    assert state["head.weight"] is state["embed.weight"]
    assert state["count"].dtype == torch.int64
    assert all(value.dtype == torch.float32 for name, value in state.items() if name != "count")
    for name, value in weights_of(str(saved), str(tmp_path)).items():
        assert torch.equal(state[name], value), name
    assert not torch.equal(state["up.weight"], state["up.weight"].bfloat16().float())  # the masters, not the halves
    model.load_state_dict(state)


def test_lazy_values_are_read_when_asked(saved):
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved)
    lazy = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved, lazy_mode=True)
    assert lazy.keys() == state.keys()
    for name, value in lazy.items():
        assert (value.shape, value.dtype, value.numel()) == (state[name].shape, state[name].dtype, state[name].numel())
        assert torch.equal(value.contiguous(), state[name])


def test_a_tag_and_without_frozen_parameters(saved):
    first = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved, "global_step1", exclude_frozen_parameters=True)
    last = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved)
    assert last.keys() - first.keys() == {"frozen"}
    assert not torch.equal(first["up.weight"], last["up.weight"])


def test_a_model_takes_the_weights(saved):
    model = Net()
    result = zero_to_fp32.load_state_dict_from_zero_checkpoint(model, str(saved))
    assert result is model
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="no tensor of the checkpoint .* is the model's: it has"):
        zero_to_fp32.load_state_dict_from_zero_checkpoint(torch.nn.Linear(2, 2), str(saved))
    other = Net()
    other.up = torch.nn.Linear(7, 6)
    with pytest.raises(ValueError, match=r"'up.weight' has the shape \[6, 7\], in the checkpoint \[5, 7\]"):
        zero_to_fp32.load_state_dict_from_zero_checkpoint(other, str(saved))


@pytest.mark.parametrize("name", FOREIGN)
def test_checkpoints_of_deepspeed(name, tmp_path):
    expected = load_file(DATA / f"{FOREIGN[name]}.safetensors")
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(DATA / name)
    out = tmp_path / "out"
    zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(DATA / name, out)
    written = load_file(out / "model.safetensors")
    weights = {key.removeprefix("weight/"): value for key, value in expected.items() if key.startswith("weight/")}
    assert len(weights) >= 3
    for key, value in weights.items():
        assert torch.equal(state[key], value), key
        assert torch.equal(written[key], value), key
    assert torch.equal(state["mean"], torch.linspace(0, 1, 7))
    precision = torch.float16 if "fp16" in name else torch.float32 if "fp32" in name else torch.bfloat16
    assert torch.equal(state["frozen"], Net().frozen.detach().to(precision).float())
    assert state["head.weight"] is state["embed.weight"]
    assert os.listdir(out) == ["model.safetensors"]
    frozen = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(DATA / name, exclude_frozen_parameters=True)
    assert state.keys() - frozen.keys() == {"frozen"}


def run_script(saved, *arguments, python=(sys.executable,)):
    done = subprocess.run(
        [*python, "zero_to_fp32.py", *arguments], cwd=saved, capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_the_script_beside_a_checkpoint(saved, tmp_path):
    script = saved / "zero_to_fp32.py"
    assert os.access(script, os.X_OK)
    out = tmp_path / "out"
    code, stdout, stderr = run_script(saved, ".", str(out))
    assert (code, stdout) == (0, f"{out}/model.safetensors\n"), stderr
    assert "writes no pickle" in stderr
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved)
    written = load_file(out / "model.safetensors")
    assert state.keys() - written.keys() == {"head.weight"}  # tied: written once, as transformers does
    assert all(torch.equal(value, state[name]) for name, value in written.items())
    small = tmp_path / "small"
    arguments = [".", str(small), "--max_shard_size", "200", "--safe_serialization", "-t", "global_step1", "-e", "-d"]
    code, stdout, stderr = run_script(saved, *arguments)
    assert code == 0, stderr
    assert "writes no pickle" not in stderr and '"name": "up.weight", "shape": [5, 7]' in stderr
    assert "model.safetensors.index.json" in os.listdir(small) and len(os.listdir(small)) > 2
    merged = {key: value for file in small.glob("*.safetensors") for key, value in load_file(file).items()}
    assert merged.keys() == written.keys() - {"frozen"}


def test_the_script_says_what_is_wrong(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(saved)
    for arguments, told in [
        ([".", "out", "--tag", "nothing"], "nothing' doesn't exist"),
        ([str(tmp_path), "out"], "is no checkpoint, and there is none in it"),
        (["missing", "out"], "Directory 'missing' doesn't exist"),
        ([".", "out", "--max_shard_size", "5 parsecs"], "max_shard_size is '5 parsecs', expected a size such as"),
    ]:
        assert zero_to_fp32.main(arguments) == 1
        assert told in capsys.readouterr().err
    assert not (saved / "out").exists()
    code, _, stderr = run_script(saved, ".", "out", python=(sys.executable, "-S", "-I"))
    assert code == 1 and "saved by zeroshard, which cannot be imported" in stderr and "Traceback" not in stderr


def test_damage_is_an_error(saved, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(saved, root)
    manifest = manifest_of(root, "global_step2")
    weight = next(
        tensor for tensor in manifest["tensors"] if (tensor["name"], tensor["kind"]) == ("up.weight", "weight")
    )
    index, _, _, offset, _ = weight["slices"][-1]
    file = root / "global_step2" / manifest["files"][index]["name"]
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)
    with pytest.raises(zeroshard.Error, match=f"{file.name}.*up.weight|up.weight.*{file.name}"):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(root)
    zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(root, "global_step1")


def test_the_files_of_a_checkpoint(saved):
    ours, theirs = str(saved / "global_step2"), str(DATA / "ds2_groups" / "global_step3")
    ranks = [f"{ours}/rank-0000{rank}.safetensors" for rank in range(2)]
    assert zero_to_fp32.get_optim_files(ours) == zero_to_fp32.get_model_state_files(ours) == ranks
    assert zero_to_fp32.get_model_state_file(ours, 3) == ranks[0]
    assert len(zero_to_fp32.get_optim_files(theirs)) == 3
    assert zero_to_fp32.get_model_state_file(theirs, 2) == f"{theirs}/mp_rank_00_model_states.pt"
    for call in (zero_to_fp32.get_optim_files, zero_to_fp32.get_model_state_files):
        with pytest.raises(FileNotFoundError):
            call(str(saved))
        with pytest.raises(FileNotFoundError):
            call(str(saved / "nothing"))


@pytest.mark.parametrize(
    "size,expected", [("5GB", 5 * 10**9), ("200 mb", 2 * 10**8), ("1.5GiB", 3 * 2**29), (77, 77), (None, 10**18)]
)
def test_sizes(size, expected):
    assert zero_to_fp32._bytes_of(size) == expected
