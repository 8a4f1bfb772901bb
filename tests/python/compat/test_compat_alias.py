"""`import deepspeed` where zeroshard provides it: names, refusals, an installed DeepSpeed, and what the import does."""

import ast
import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
import strace
import zeroshard
from zeroshard.compat import alias

PATH = pathlib.Path(alias.PATH)


def python(code, *, first=(alias.PATH,), check=True, **variables):
    """What a Python prints in which deepspeed is provided by zeroshard."""
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    here = str(PATH.parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*first, *known, here])} | variables
    environment.pop("ZEROSHARD_TOLD_PROVIDER", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture
def installed(tmp_path):
    """A folder with another DeepSpeed, as a package installer leaves it."""
    package = tmp_path / "site" / "deepspeed"
    (package / "moe").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.1'\nother = True\n")
    (package / "moe" / "__init__.py").write_text("")
    metadata = tmp_path / "site" / "deepspeed-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.1\n")
    return str(tmp_path / "site")


def test_the_metadata_has_the_version_of_this_package():
    """It is written by hand, as its folder's name is."""
    version = f"0.19.8+zeroshard.{zeroshard.__version__}"
    folder = PATH / f"deepspeed-{version}.egg-info"
    assert sorted(entry.name for entry in PATH.iterdir() if entry.name != "__pycache__") == ["deepspeed", folder.name]
    (distribution,) = importlib.metadata.distributions(name="deepspeed", path=[str(PATH)])
    assert (distribution.version, distribution.metadata["Name"]) == (version, "deepspeed")
    assert version == alias.VERSION


def modules_of_the_package():
    for path in sorted((PATH / "deepspeed").rglob("*.py")):
        parts = path.relative_to(PATH).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


RESOLVE = """
import importlib, json, sys
found = {}
for module in sys.argv[1:]:
    try:
        loaded = importlib.import_module(module)
        for name in getattr(loaded, "__all__", ()):
            try:
                getattr(loaded, name)
            except ModuleNotFoundError as error:
                found[f"{module}.{name}"] = error.name
    except ModuleNotFoundError as error:
        found[module] = error.name
print(json.dumps(found))
"""


def resolve(*modules):
    """Names that these modules promise and do not have, with the module that is missing."""
    import json

    code = f"import sys\nsys.argv[1:] = {list(modules)!r}\n{RESOLVE}"
    return json.loads(python(code).stdout)


def test_every_promised_name_is_there():
    missing = resolve(*modules_of_the_package())
    assert missing == {}


CHECK = """
import importlib, deepspeed
for name in names:
    value, path = deepspeed, "deepspeed"
    try:
        for part in name.split(".")[1:]:
            path += "." + part
            try:
                value = getattr(value, part)
            except AttributeError:
                value = importlib.import_module(path)
    except (AttributeError, ImportError) as error:
        print(name, getattr(error, "name", None) or "-", error, sep="|")
"""


def test_every_name_that_the_libraries_use_is_there():
    """Read from their sources: imports of deepspeed, and attributes of what they bind."""
    used = {library: names_used_by(library) for library in ("transformers", "accelerate", "trl", "peft")}
    assert all(used.values()), f"a library uses nothing of deepspeed: it is read wrongly: {used}"
    names = sorted(set.union(*used.values()))
    for line in python(f"names = {names!r}\n{CHECK}").stdout.splitlines():
        name, missing, text = line.split("|", 2)
        refused = REFUSED_NAMES.get(name)
        assert refused and refused in text, line


# What these libraries use, and where they do; each has a message of its own.
REFUSED_NAMES = {
    "deepspeed.tp_model_init": "no tensor parallelism",
    "deepspeed.utils.is_initialized": "deepspeed.utils has",  # gone from DeepSpeed itself; the caller expects that
}


def names_used_by(library):
    root = pathlib.Path(importlib.util.find_spec(library).origin).parent
    used = set()
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "deepspeed" in text:
            used |= names_in(ast.parse(text))
    return used


def names_in(tree):
    """ "deepspeed.x.y" for every name of deepspeed that a module's code touches."""
    bound, used = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name.split(".")[0] == "deepspeed":
                    bound[item.asname or "deepspeed"] = item.name if item.asname else "deepspeed"
                    used.add(item.name)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "deepspeed":
            for item in node.names:
                bound[item.asname or item.name] = f"{node.module}.{item.name}"
                used.add(f"{node.module}.{item.name}")
    modules = {name: full for name, full in bound.items() if full.rpartition(".")[2][0].islower()}
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in modules:
            used.add(".".join([modules[node.id], *reversed(parts)]))
    return used


def test_a_name_used_in_sources_is_found():
    """The reader of sources itself."""
    text = "import deepspeed\nfrom deepspeed.a import b as c\ndeepspeed.zero.Init()\nx = c.d\nself.deepspeed.config\n"
    used = {"deepspeed", "deepspeed.a.b", "deepspeed.a.b.d", "deepspeed.zero", "deepspeed.zero.Init"}
    assert names_in(ast.parse(text)) == used


MORE_NAMES = """
import deepspeed, torch, zeroshard
from deepspeed import DeepSpeedConfigError
from deepspeed.runtime import config, lr_schedules
from deepspeed.runtime.sequence_parallel.ulysses_sp import SequenceTiledCompute, TiledFusedLogitsLoss, TiledMLP
from deepspeed.runtime.sequence_parallel.ulysses_sp import sequence_tiled_compute
from deepspeed.runtime.zero import stage_1_and_2, stage3
from deepspeed.runtime.zero.stage3 import unwrap_model_for_generation
from deepspeed.utils import safe_get_full_grad, safe_update_full_grad_vectorized, tensor_fragment

assert tensor_fragment.safe_update_full_grad_vectorized is safe_update_full_grad_vectorized
assert config.DeepSpeedConfigError is DeepSpeedConfigError
model = torch.nn.Linear(2, 2)
try:
    deepspeed.initialize(model=model, config={"train_batch_size": 1, "zero_optimization": {"stage": 7}})
except DeepSpeedConfigError as error:
    print("refused", "stage" in str(error))
blocks = {"zero_optimization": {"stage": 3}, "optimizer": {"type": "Adam"}, "zeroshard": {"shard_one_rank": True}}
blocks["scheduler"] = {"type": "WarmupLR"}
engine, optimizer, _, schedule = deepspeed.initialize(model=model, config={"train_batch_size": 1, **blocks})
assert isinstance(optimizer, stage3.DeepSpeedZeroOptimizer_Stage3) and isinstance(schedule, lr_schedules.WarmupLR)
with unwrap_model_for_generation(engine) as whole:
    print("whole", whole is engine, model.weight.shape, model.weight.sum().item() != 0)
engine.backward(engine(torch.ones(1, 2)).sum())
safe_update_full_grad_vectorized(model.parameters(), lambda grad, param: grad * 2)
print("twice", safe_get_full_grad(model.bias).tolist())
"""


def test_names_of_deeper_modules():
    lines = python(MORE_NAMES).stdout.splitlines()
    assert "refused True" in lines and "whole True torch.Size([2, 2]) True" in lines and "twice [2.0, 2.0]" in lines


REFUSALS = [
    ("import deepspeed.moe", "ModuleNotFoundError", "no expert parallelism"),
    ("from deepspeed import moe", "ModuleNotFoundError", "no expert parallelism"),
    ("from deepspeed.moe.layer import MoE", "ModuleNotFoundError", "no expert parallelism"),
    ("from deepspeed.pipe import PipelineModule", "ModuleNotFoundError", "no pipeline parallelism"),
    ("from deepspeed import PipelineModule", "ModuleNotFoundError", "no pipeline parallelism"),
    ("deepspeed.PipelineModule(layers=[])", "AttributeError", "no pipeline parallelism"),
    ("deepspeed.init_inference(None)", "AttributeError", "no inference kernels"),
    ("deepspeed.tp_model_init(None, 2, None)", "AttributeError", "no tensor parallelism"),
    ("from deepspeed.sequence.layer import DistributedAttention", "ModuleNotFoundError", "has no layer for other"),
    ("from deepspeed.ops.op_builder import CPUAdamBuilder", "ModuleNotFoundError", "builds no operators"),
    ("import deepspeed.nonsense", "ModuleNotFoundError", "deepspeed has DeepSpeedConfigError, DeepSpeedEngine, "),
    ("from deepspeed.utils.groups import nonsense", "ModuleNotFoundError", "deepspeed.utils.groups has get_"),
    ("deepspeed.utils.nonsense", "AttributeError", "deepspeed.utils has RepeatingLoader, "),
]
REFUSE = """
import deepspeed
for statement in statements:
    try:
        exec(statement)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_missing_names_say_who_has_no_such_thing():
    lines = python(f"statements = {[row[0] for row in REFUSALS]!r}\n{REFUSE}").stdout.splitlines()
    for (statement, error, reason), text in zip(REFUSALS, lines, strict=True):
        assert text.startswith(f"{error} 'deepspeed."), (statement, text)
        assert reason in text, (statement, text)
        assert "provided by zeroshard" in text and "zeroshard run --no-deepspeed" in text


def test_probes_find_what_there_is():
    code = """
import importlib.metadata, importlib.util, deepspeed
assert deepspeed.__zeroshard__ and deepspeed.__version__ == importlib.metadata.version("deepspeed")
assert not any([hasattr(deepspeed, "moe"), hasattr(deepspeed.utils, "nonsense"), hasattr(deepspeed, "__wrapped__")])
assert hasattr(deepspeed, "initialize") and hasattr(deepspeed.runtime, "lr_schedules")
assert "initialize" in dir(deepspeed) and "logger" in dir(deepspeed.utils)
assert importlib.util.find_spec("deepspeed.comm") is not None
deepspeed.utils.logger = "mine"  # names can be replaced
assert deepspeed.utils.logger == "mine"
from deepspeed.utils.logging import *
assert logger.name == "DeepSpeed"
"""
    python(code)


def test_an_installed_deepspeed_is_hidden_as_a_whole(installed):
    code = """
import importlib.metadata, deepspeed
assert deepspeed.__zeroshard__ and not hasattr(deepspeed, "other")
assert importlib.metadata.version("deepspeed").startswith("0.19.8+zeroshard.")
assert "zeroshard" in importlib.metadata.metadata("deepspeed")["Version"]
try:
    import deepspeed.moe
except ModuleNotFoundError as error:
    print("refused")
"""
    done = python(code, first=(alias.PATH, installed))
    assert done.stdout == "refused\n"
    (line,) = [line for line in done.stderr.splitlines() if "provided by zeroshard" in line]
    assert f"the DeepSpeed in {installed} is not used" in line and "--no-deepspeed" in line
    other = "import deepspeed, importlib.metadata as m\nprint(deepspeed.other, m.version('deepspeed'))"
    assert python(other, first=(installed,)).stdout == "True 0.1\n"


def test_rank_0_says_it_once():
    """Neither other ranks say it, nor processes that it starts, which import deepspeed as it did."""
    code = """
import multiprocessing, subprocess, sys
import deepspeed
subprocess.run([sys.executable, "-c", "import deepspeed"], check=True)
child = multiprocessing.get_context("fork").Process(target=__import__, args=("deepspeed.utils",))
child.start(); child.join()
"""
    told = python(code, RANK="0", WORLD_SIZE="2").stderr
    assert told.count("deepspeed is provided by zeroshard") == 1
    assert "provided" not in python(code, RANK="1", WORLD_SIZE="2").stderr


def test_a_python_without_zeroshard_is_told_so():
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import deepspeed"],
        env={"PYTHONPATH": alias.PATH},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"deepspeed is provided by zeroshard here ({PATH / 'deepspeed'}), which" in done.stderr


def test_the_import_writes_nothing_and_starts_nothing(tmp_path):
    strace.require()
    code = (
        "import torch, torch.distributed, os\nos.stat('/begin')if os.path.exists('/begin') else 0\nimport deepspeed\n"
    )
    code += (
        "deepspeed.utils.logger, deepspeed.comm, deepspeed.runtime.lr_schedules\nassert not torch.cuda.is_initialized()"
    )
    known = os.environ.get("PYTHONPATH", "")
    trace = tmp_path / "trace"
    subprocess.run(
        ["strace", "-f", "-o", trace, "-e", "trace=openat,mkdir,execve,unlink,rename,stat,newfstatat", sys.executable]
        + ["-c", code],
        env=os.environ | {"PYTHONPATH": f"{alias.PATH}:{PATH.parents[2]}:{known}", "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        capture_output=True,
        timeout=300,
    )
    lines = trace.read_text(errors="replace").splitlines()
    begin = next(number for number, line in enumerate(lines) if '"/begin"' in line)
    after = lines[begin + 1 :]
    assert any("compat/path/deepspeed" in line for line in after)
    changes = [line for line in after if "O_WRONLY" in line or "O_RDWR" in line or "O_CREAT" in line]
    changes += [line for line in after if any(f" {call}(" in line for call in ("mkdir", "execve", "unlink", "rename"))]
    assert [line for line in changes if "/dev/null" not in line] == []
    assert not any("/dev/nvidia" in line for line in after)


NOTEBOOK = """
import zeroshard
zeroshard.as_deepspeed()
zeroshard.as_deepspeed()
import deepspeed, importlib.metadata, importlib.util
assert deepspeed.__zeroshard__
assert importlib.util.find_spec("deepspeed").origin.endswith("compat/path/deepspeed/__init__.py")
assert importlib.metadata.version("deepspeed") == deepspeed.__version__
assert importlib.metadata.version("torch")
from transformers.integrations import is_deepspeed_available
assert is_deepspeed_available()
zeroshard.as_deepspeed()
"""


def test_as_deepspeed_serves_a_notebook(installed):
    python(NOTEBOOK, first=(installed,))


@pytest.mark.parametrize("name", ["deepspeed", "accelerate", "transformers"])
def test_as_deepspeed_comes_before_the_imports_that_look_for_it(name, installed):
    code = (
        f"import {name}, zeroshard\ntry:\n    zeroshard.as_deepspeed()\nexcept zeroshard.StateError as e:\n    print(e)"
    )
    text = python(code, first=(installed,)).stdout
    assert name in text and "imported already" in text
