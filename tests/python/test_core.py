"""Which core a torch gets: find_core, and the script zeroshard-torch beside a Python."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from zeroshard.core import find_core

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "python" / "zeroshard-torch"
MANY = ["torch_2_9_cpu", "torch_2_13_cpu", "torch_2_13_cu13", "torch_2_15_cu13"]


def package(folder, cores):
    """A folder that looks like the installed package's, as far as finding a core goes."""
    for core in cores:
        (folder / "cores" / core).mkdir(parents=True)
    return [str(folder / "elsewhere"), str(folder)]


@pytest.mark.parametrize(
    ("version", "cuda", "core"),
    [
        ("2.13.0", None, "torch_2_13_cpu"),
        ("2.13.0+cpu", None, "torch_2_13_cpu"),
        ("2.13.4+cu130", "13.0", "torch_2_13_cu13"),
        ("2.13.0a0+git1234", "13.2", "torch_2_13_cu13"),
        ("2.15.0.dev20261123", "13.0", "torch_2_15_cu13"),
        ("2.9.1rc1", None, "torch_2_9_cpu"),
    ],
)
def test_the_core_is_that_of_the_minor_version_and_of_cuda(tmp_path, version, cuda, core):
    assert find_core(package(tmp_path, MANY), version, cuda) == tmp_path / "cores" / core


@pytest.mark.parametrize(
    ("version", "cuda", "found"),
    [
        ("2.16.0", "13.0", "torch is 2.16.0 with CUDA 13.0: "),
        ("2.1.0", None, "torch is 2.1.0: "),
        ("2.13.0", "12.6", "torch is 2.13.0 with CUDA 12.6: "),
        ("2.15.0", None, "torch is 2.15.0: "),
    ],
)
def test_another_torch_is_refused_and_told_which_there_are(tmp_path, version, cuda, found):
    with pytest.raises(ImportError) as error:
        find_core(package(tmp_path, MANY), version, cuda)
    assert "was built for torch 2.9 (cpu), 2.13 (cpu, cu13), 2.15 (cu13), and " + found in str(error.value)


def test_without_any_core_the_error_says_so(tmp_path):
    with pytest.raises(ImportError, match=r"was built for no torch, and torch is 2\.13\.0: install"):
        find_core([str(tmp_path)], "2.13.0", None)


def test_a_core_without_cuda_serves_where_there_is_none_with(tmp_path):
    """So it is where zeroshard was built with ZEROSHARD_CUDA=OFF. The torch still has to be the same."""
    cores = package(tmp_path, ["torch_2_13_cpu"])
    assert find_core(cores, "2.13.0", "13.0").name == "torch_2_13_cpu"
    with pytest.raises(ImportError, match="with CUDA"):
        find_core(cores, "2.12.0", "13.0")


@pytest.fixture
def site(tmp_path):
    """Packages torch and zeroshard, which cannot be imported, and a core whose program prints what it is given."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.1+cpu'\ncuda = None\n")
    core = tmp_path / "zeroshard" / "cores" / "torch_2_13_cpu"
    core.mkdir(parents=True)
    (tmp_path / "zeroshard" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "zeroshard" / "core.py").symlink_to(ROOT / "python" / "zeroshard" / "core.py")
    (core / "zeroshard-torch").write_text('#!/bin/sh\necho "$$ $LD_LIBRARY_PATH $*"\nexit 7\n')
    (core / "zeroshard-torch").chmod(0o755)
    return tmp_path


def start(site, *arguments):
    script = site / "bin" / "zeroshard-torch"
    script.parent.mkdir(exist_ok=True)
    shutil.copy(SCRIPT, script)
    # -S: the editable package of this Python would be found instead.
    environment = {**os.environ, "PYTHONPATH": str(site), "LD_LIBRARY_PATH": "/before"}
    with subprocess.Popen(
        [sys.executable, "-S", script, *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        out, err = process.communicate()
    return process, out, err


def test_the_script_becomes_the_program_of_the_core(site):
    process, out, err = start(site, "train", "x y")
    assert (process.returncode, err) == (7, "")
    # The same process. LibTorch lies where the program does not look for it.
    assert out == f"{process.pid} {site}/torch/lib:/before train x y\n"
    (site / "torch" / "lib").mkdir()
    _, out, _ = start(site)
    assert out.split()[1] == "/before"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("torch/version.py", "has no torch: pip install torch"),
        ("zeroshard/cores/torch_2_13_cpu/zeroshard-torch", "this zeroshard was built without it"),
    ],
)
def test_the_script_says_in_one_line_what_is_missing(site, broken, message):
    (site / broken).unlink()
    if broken.startswith("torch"):
        (site / "torch" / "__init__.py").unlink()
        (site / "torch").rmdir()
    process, out, err = start(site, "train")
    assert (process.returncode, out) == (1, "")
    assert err.startswith("zeroshard-torch: ") and err.count("\n") == 1 and message in err


def test_the_script_refuses_another_torch_by_name(site):
    (site / "torch" / "version.py").write_text("__version__ = '2.16.0'\ncuda = '13.0'\n")
    _, _, err = start(site)
    assert err.startswith(
        "zeroshard-torch: this zeroshard was built for torch 2.13 (cpu), and torch is 2.16.0 with CUDA 13.0"
    )
