"""Which core a torch gets: find_core, and the command zeroshard-torch of a Python."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from built import REPOSITORY
from zeroshard.core import find_core

PYTHON = REPOSITORY / "python"
MANY = ["torch_2_9_cpu", "torch_2_13_cpu", "torch_2_13_cu13", "torch_2_15_cu13"]


def package(folder, cores):
    """A folder that looks like the installed package's, as far as finding a core goes."""
    for core in [*cores, "torch_old", "__pycache__"]:
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
    shutil.copy(PYTHON / "zeroshard" / "core.py", tmp_path / "zeroshard")
    shutil.copytree(PYTHON / "zeroshard_program", tmp_path / "zeroshard_program")
    (core / "zeroshard-torch").write_text('#!/bin/sh\necho "$$ $LD_LIBRARY_PATH $*"\nexit 7\n')
    (core / "zeroshard-torch").chmod(0o755)
    return tmp_path


def start(site, *arguments, path=()):
    # -S: the editable package of this Python would be found instead. As the command that pip makes of the entry point.
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, [*path, site])), "LD_LIBRARY_PATH": "/before"}
    program = "import sys, zeroshard_program; sys.exit(zeroshard_program.main())"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program, *arguments],
        env=environment,
        cwd=site.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        out, err = process.communicate()
    return process, out, err


def test_the_script_becomes_the_program_of_the_core(site):
    process, out, err = start(site, "train", "x y")
    assert (process.returncode, err) == (7, "")
    # The script has become the program in its own process. The program finds the torch beside the package by itself.
    assert out == f"{process.pid} /before train x y\n"


def test_the_libraries_are_those_of_the_torch_that_was_found(site, tmp_path):
    """It may lie in another folder than zeroshard, as with `pip install --user`, while another torch lies beside."""
    user = tmp_path / "user"
    for folder in ("torch/lib", "nvidia/cu13/lib", "nvidia/nccl/lib"):
        (user / folder).mkdir(parents=True)
    (user / "torch" / "__init__.py").touch()
    (user / "torch" / "version.py").write_text("__version__ = '2.13.0'\ncuda = None\n")
    _, out, _ = start(site, path=[user])
    folders = [f"{user}/{folder}" for folder in ("torch/lib", "nvidia/cu13/lib", "nvidia/nccl/lib")]
    assert out.split()[1] == ":".join([*folders, "/before"])


def test_signals_that_python_ignores_are_not_ignored(site):
    program = site / "zeroshard" / "cores" / "torch_2_13_cpu" / "zeroshard-torch"
    program.write_text("#!/bin/sh\ngrep SigIgn /proc/$$/status\n")
    _, out, _ = start(site)
    ignored = int(out.split()[1], 16)
    assert ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("torch/version.py", "has no torch: pip install torch"),
        ("zeroshard/cores/torch_2_13_cpu/zeroshard-torch", "this zeroshard was built without it"),
        ("zeroshard/core.py", "has no zeroshard: install it again"),
    ],
)
def test_the_script_says_in_one_line_what_is_missing(site, broken, message):
    (site / broken).unlink()
    process, out, err = start(site, "train")
    assert (process.returncode, out) == (1, "")
    assert err.startswith("zeroshard-torch: ") and err.count("\n") == 1 and message in err


def test_the_script_refuses_another_torch_by_name(site):
    (site / "torch" / "version.py").write_text("__version__ = '2.16.0'\ncuda = '13.0'\n")
    _, _, err = start(site)
    assert err.startswith(
        "zeroshard-torch: this zeroshard was built for torch 2.13 (cpu), and torch is 2.16.0 with CUDA 13.0"
    )
