"""zeroshard runs without zeroshard.compat and zeroshard.importing: what serves other libraries is loaded on demand."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import zeroshard
from built import REPOSITORY

LEFT_OUT = ("compat", "importing")

LOADED = """
import sys, zeroshard
print([name for name in sys.modules if name.startswith(("zeroshard.compat", "zeroshard.importing"))])
"""

TRAINS = """
import sys, torch, zeroshard
config = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zeroshard": {"shard_one_rank": True},
}

def start(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    return zeroshard.initialize(model=model, config=config)[0]

engine, other = start(seed=0), start(seed=1)
for _ in range(3):
    engine.backward(engine(torch.ones(2, 8)).square().mean())
    engine.step()
engine.save_checkpoint(sys.argv[1])
engine.wait_for_checkpoint()
assert other.parameter_digest() != engine.parameter_digest()
other.load_checkpoint(sys.argv[1])
assert other.parameter_digest() == engine.parameter_digest() and other.global_steps == 3
print(zeroshard.__path__[-1])
"""


def python(script, *arguments, path=()):
    """What a fresh interpreter prints. With `path` it takes packages from there, not the editable one."""
    found = [str(folder) for folder in path]
    alone = ["-S", "-c", f"import sys; sys.path[1:1] = {found}\n{script}"] if path else ["-c", script]
    result = subprocess.run([sys.executable, *alone, *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_loads_nothing_of_them():
    assert python(LOADED) == "[]"


def test_a_copy_without_them_trains_saves_and_loads(tmp_path):
    copy, core = tmp_path / "zeroshard", Path(zeroshard._C.__file__).parent
    ignored = shutil.ignore_patterns(*LEFT_OUT, "__pycache__", "cores")
    shutil.copytree(REPOSITORY / "python" / "zeroshard", copy, ignore=ignored)
    (copy / "cores").mkdir()
    (copy / "cores" / core.name).symlink_to(core)
    used = python(TRAINS, tmp_path / "saved", path=[tmp_path, sysconfig.get_path("purelib")])
    assert used == str(copy) and not any((copy / name).exists() for name in LEFT_OUT)


def test_names_of_them_are_found_on_demand():
    assert "as_deepspeed" in dir(zeroshard)
    assert python("import zeroshard; print(zeroshard.as_deepspeed.__module__)") == "zeroshard.compat.alias"
