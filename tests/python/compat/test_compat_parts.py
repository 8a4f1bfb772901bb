"""The small parts of the interface of DeepSpeed: devices, arguments, logs, loaders, schedules, packaging."""

import argparse
import importlib.metadata
import inspect
import logging
import os
import shutil
import subprocess
import sys

import pytest
import torch
from built import REPOSITORY
from zeroshard.compat import accelerator, alias, arguments, checkpointing, groups, logs, lr_schedules, runtime_utils
from zeroshard.compat.repeating import RepeatingLoader


def test_the_cpu_as_an_accelerator(monkeypatch):
    device = accelerator.CpuAccelerator()
    assert device.device_name() == device.device_name(3) == device.current_device_name() == "cpu"
    assert (device.communication_backend_name(), device.is_available()) == ("gloo", True)
    assert torch.zeros(1, device=device.current_device()).device == device.device(0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert device.device_count() == 3
    used, peak = device.memory_allocated(), device.max_memory_allocated()
    assert 0 < used <= peak <= device.total_memory()
    assert 0 < device.available_memory() < device.total_memory()
    device.manual_seed(5)
    state = device.get_rng_state()
    first = torch.rand(2)
    device.set_rng_state(state)
    assert torch.equal(torch.rand(2), first)
    for nothing in (device.synchronize, device.empty_cache, device.reset_peak_memory_stats, device.range_pop):
        assert nothing() is None
    with device.stream(None):
        assert device.supported_dtypes() == [torch.float, torch.half, torch.bfloat16]


def test_cuda_as_an_accelerator():
    """Names alone, which needs no GPU: each is there in torch, and what the CPU has."""
    device = accelerator.CudaAccelerator()
    public = [name for name in dir(accelerator.CpuAccelerator) if name[0] != "_"]
    assert [name for name in public if name not in dir(device)] == []
    assert [name for name in dir(device) if name[0] != "_" and not hasattr(device, name)] == []
    assert (device.device_name(1), device.device(1)) == ("cuda:1", torch.device("cuda", 1))
    assert device.communication_backend_name() == "nccl"
    assert not hasattr(device, "nonsense") and not torch.cuda.is_initialized()


def test_the_choice_of_the_accelerator(monkeypatch):
    choose = accelerator.get_accelerator.__wrapped__
    for name, kind in (("cpu", accelerator.CpuAccelerator), ("cuda", accelerator.CudaAccelerator)):
        monkeypatch.setenv("DS_ACCELERATOR", name)
        assert type(choose()) is kind
    monkeypatch.setenv("DS_ACCELERATOR", "xpu")
    with pytest.raises(ValueError, match="DS_ACCELERATOR is 'xpu', expected 'cuda' or 'cpu'"):
        choose()


def test_arguments():
    parser = arguments.add_config_arguments(argparse.ArgumentParser())
    given = parser.parse_args(["--deepspeed", "--deepspeed_config", "x.json"])
    assert (given.deepspeed, given.deepspeed_config) == (True, "x.json")
    assert parser.parse_args([]).deepspeed is False


def test_logs(capsys):
    assert isinstance(logs.logger, logging.Logger) and logs.logger.level == logging.WARNING
    logs.logger.warning_once("only once")
    logs.logger.warning_once("only once")
    logs.log_dist("quiet", ranks=[0])
    logs.log_dist("loud", ranks=[0], level=logging.ERROR)
    out, err = capsys.readouterr()
    assert out == "" and err.count("only once") == 1 and "quiet" not in err and "[Rank -1] loud" in err
    with pytest.raises(ValueError, match="log level is 'all', expected one of debug, info"):
        logs.set_log_level_from_string("all")


def test_a_repeating_loader():
    loader = RepeatingLoader([1, 2])
    assert [next(loader) for _ in range(5)] == [1, 2, 1, 2, 1]
    with pytest.raises(StopIteration):
        next(RepeatingLoader([]))


@pytest.mark.parametrize("name", lr_schedules.VALID_LR_SCHEDULES)
def test_schedules_over_any_optimizer(name):
    """Each by name and by position, and from where another one stopped."""
    optimizer, other = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1) for _ in range(2))
    kind = getattr(lr_schedules, name)
    assert kind.__name__ == name
    first = {"LRRangeTest": 0.01, "OneCycle": 0.01, "WarmupLR": 0.01}.get(name, 10)
    params = {"cycle_max_lr": 0.1} if name == "OneCycle" else {}
    schedule = kind(optimizer, first, **params)
    for _ in range(5):
        schedule.step()
    assert schedule.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
    again = kind(other, **{kind._FIRST[0]: first}, **params, last_batch_iteration=schedule.last_batch_iteration)
    schedule.step()
    again.step()
    assert again.get_last_lr() == schedule.get_last_lr()
    with pytest.raises(TypeError, match="by position"):
        kind(optimizer, *range(9))


def test_checkpointing_of_activations():
    weight = torch.nn.Parameter(torch.tensor(2.0))
    checkpointing.checkpoint(lambda value: value * weight, torch.tensor(3.0)).backward()
    assert weight.grad == 3
    checkpointing.configure(None, partition_activations=False)
    assert checkpointing.is_configured()
    with pytest.raises(ValueError, match="partition_activations is True"):
        checkpointing.configure(None, partition_activations=True)


def test_groups_and_helpers():
    assert (groups.get_data_parallel_world_size(), groups.get_data_parallel_rank()) == (1, 0)
    assert (groups._get_sequence_parallel_world_size(), groups.get_model_parallel_world_size()) == (1, 1)
    moved = runtime_utils.move_to_device({"a": [torch.zeros(1)], "b": 2}, "meta")
    assert moved["a"][0].device.type == "meta" and moved["b"] == 2
    runtime_utils.set_random_seed(3)
    first = torch.rand(1)
    runtime_utils.set_random_seed(3)
    assert torch.equal(torch.rand(1), first)


def test_the_signature_of_initialize():
    from zeroshard import initialize
    from zeroshard.compat import deepspeed

    assert list(inspect.signature(deepspeed.initialize).parameters) == list(inspect.signature(initialize).parameters)


# --- packaging --------------------------------------------------------------------------------------------------------


def test_a_wheel_holds_the_metadata_and_the_programs(tmp_path):
    """scikit-build-core leaves folders *.dist-info out of wheels, whatever it is told."""
    pytest.importorskip("scikit_build_core")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-build-isolation", "--no-deps", "-Cwheel.cmake=false", f"-Cbuild-dir={tmp_path / 'build'}"]
    subprocess.run([*pip, *build, "--wheel-dir", tmp_path, "."], cwd=REPOSITORY, check=True)
    (wheel,) = tmp_path.glob("zeroshard-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True)
    compat = tmp_path / "site" / "zeroshard" / "compat"
    (found,) = importlib.metadata.distributions(name="deepspeed", path=[str(compat / "path")])
    assert found.version == alias.VERSION
    assert (compat / "path" / "deepspeed" / "__init__.py").exists()
    assert all(os.access(compat / "bin" / name, os.X_OK) for name in ("deepspeed", "ds_report"))
    (program,) = (tmp_path / "site" / "bin").iterdir()
    assert program.name == "zeroshard-torch"
    assert (tmp_path / "site" / "zeroshard_program" / "__init__.py").exists()


@pytest.mark.parametrize("name", ["deepspeed", "ds_report"])
def test_an_installed_program_starts_the_zeroshard_beside_it(tmp_path, name):
    """Without PATH, by its own place; else one error."""
    folder = tmp_path / "lib" / "python3" / "site-packages" / "zeroshard" / "compat" / "bin"
    shutil.copytree(alias.BIN, folder)
    environment = {"PATH": "/usr/bin:/bin"}
    command = [folder / name, "--x", "a b"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2 and done.stderr.startswith(f"{name}: the program zeroshard")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "zeroshard"
    program.write_text(f"#!{sys.executable}\nimport sys; print(sys.argv[1:])\n")
    program.chmod(0o755)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    first = ["--add-local-rank"] if name == "deepspeed" else ["--nproc", "1", "-m", "zeroshard.compat.report"]
    assert done.stdout == f"{['run', *first, '--x', 'a b']}\n"
