"""zeroshard as an installed C++ library: projects of tests/install are built against the installed tree, and run."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
import zeroshard
from built import BUILD, REPOSITORY, needs

ARCHIVES = ("libzeroshard.a", "libzeroshard_core.a", "libzeroshard_lm.a", "libzeroshard_lm_core.a")
pytestmark = needs(*(BUILD / archive for archive in ARCHIVES))

PROJECTS = REPOSITORY / "tests" / "install"
HEADERS = {header.stem for header in (REPOSITORY / "include" / "zeroshard").glob("*.h")}
LM_HEADERS = {header.stem for header in (REPOSITORY / "lm" / "include" / "zeroshard").glob("*.h")}
WITH_TORCH = {"causal_lm", "checkpoint", "engine", "kept_tensor", "nn", "sequence", "world", "zeroshard"}
FIRST = {"own_model": "nn", "language_model": "causal_lm"}  # the header that a program includes before any other


def call(*command, **options):
    """The output of a command that has to succeed."""
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False, **options
    )
    assert result.returncode == 0, f"{command}:\n{result.stdout}"
    return result.stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with zeroshard installed in prefix/, and in library/ without lm."""
    folder = tmp_path_factory.mktemp("install")
    for prefix, component in (("library", "library"), ("prefix", "library"), ("prefix", "lm")):
        call("cmake", "--install", str(BUILD), "--prefix", str(folder / prefix), "--component", component)
    return folder


def configure(root, project, build, *options, prefixes=(), prefix="prefix"):
    """The finished process of configuring a project outside of this repository."""
    shutil.copytree(PROJECTS, root / "sources", dirs_exist_ok=True)
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    environment = {name: value for name, value in os.environ.items() if name not in ("CMAKE_PREFIX_PATH", "Torch_DIR")}
    return subprocess.run(
        ["cmake", "-G", "Ninja", "-S", root / "sources" / project, "-B", root / build, *launcher]
        + [f"-DCMAKE_PREFIX_PATH={';'.join(map(str, (root / prefix, *prefixes)))}", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


def build(root, project, *options, prefix="prefix"):
    """The folder of a project's programs."""
    result = configure(root, project, project, *options, prefix=prefix)
    assert result.returncode == 0, result.stdout + result.stderr
    # Paths in the compiler's output are relative, so that another test run's folder has the same.
    cache = {"CCACHE_BASEDIR": str(root), "CCACHE_NOHASHDIR": "1"}
    cache["CCACHE_SLOPPINESS"] = "include_file_mtime,include_file_ctime"
    call("cmake", "--build", str(root / project), env=os.environ | cache)
    return root / project


@pytest.fixture(scope="module")
def programs(root):
    headers = WITH_TORCH - set(FIRST.values())
    return build(root, "app", f"-DHEADERS={';'.join(sorted(headers))}", f"-DPython_EXECUTABLE={sys.executable}")


def losses(root, *command):
    """The losses that a program prints, alone and as two ranks: the same."""
    alone = call(*command)
    two = call(str(root / "prefix" / "bin" / "zeroshard"), "run", "--nproc", "2", *command)
    found = [re.findall(r"step \d+ loss (\S+)", output) for output in (alone, two)]
    assert found[0], alone
    values = [[float(text) for text in texts] for texts in found]
    assert values[1] == pytest.approx(values[0], rel=1e-5), (alone, two)
    return values[0]


def test_a_model_of_ones_own_trains(root, programs):
    first, *_, last = losses(root, str(programs / "own_model"), "4")
    assert 0 < last < 0.5 * first


def test_a_causal_lm_trains(root, programs):
    first, second = losses(root, str(programs / "language_model"), str(root / "x.tokens"))
    assert 3.5 < second < first < 4.5  # at first about log(50 ids)


@pytest.mark.parametrize(("program", "header"), FIRST.items())
def test_first_headers(program, header):
    """nn.h and causal_lm.h compile alone too: nothing stands before them."""
    source = (PROJECTS / "app" / f"{program}.cpp").read_text(encoding="utf-8")
    assert re.search(r"#include (\S+)", source)[1] == f'"zeroshard/{header}.h"'


def test_core_needs_no_torch_and_no_lm(root):
    headers = f"-DHEADERS={';'.join(sorted(HEADERS - WITH_TORCH))}"
    folder = build(root, "core", headers, "-DPython_EXECUTABLE=/none", prefix="library")
    program = str(folder / "say_batch")
    assert re.fullmatch(r"zeroshard \d+\.\d+\.\d+: micro-batches of 2\n", call(program))
    for library in ("torch", "pcre2", "utf8proc"):
        assert library not in call("ldd", program)


def test_data_needs_no_torch(root):
    headers = f"-DHEADERS={';'.join(sorted(LM_HEADERS - WITH_TORCH))}"
    program = str(build(root, "lm_core", headers, "-DPython_EXECUTABLE=/none") / "count_rows")
    output = call(program, str(root / "y.tokens"))
    assert re.fullmatch(r"zeroshard \d+\.\d+\.\d+: 20 tokens, 5 rows in batches of 2\n", output), output
    assert "torch" not in call("ldd", program)


def test_the_library_installs_nothing_of_lm(root):
    """The component lm adds its headers, archives and programs, and changes no file."""
    alone, all_of_it = (
        {path.relative_to(base) for path in base.rglob("*")} for base in (root / "library", root / "prefix")
    )
    assert alone < all_of_it
    names = {path.name for path in all_of_it - alone}
    assert names >= {f"{header}.h" for header in LM_HEADERS} | {"libzeroshard_lm.a", "zeroshard-torch"}
    result = configure(root, "lm_core", "lm_core-refused", prefix="library")
    assert result.returncode != 0
    assert "this zeroshard has no lm: build it with ZEROSHARD_WITH_LM=ON, and" in " ".join(result.stderr.split())


def fake_torch(folder, version):
    """A folder that looks like LibTorch's as far as finding it goes."""
    header = folder / "include" / "torch" / "headeronly" / "version.h"
    header.parent.mkdir(parents=True)
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    header.write_text("".join(f"#define TORCH_VERSION_{name} {number}\n" for name, number in parts))
    (folder / "lib").mkdir()
    (folder / "lib" / "libtorch_cpu.so").touch()
    return folder


def test_which_torch(root, tmp_path):
    """Found where the user says; a refusal tells both versions, or where it was looked for, and a way out."""
    no_torch = tmp_path / "python-without"
    no_torch.write_text("#!/bin/sh\nexit 1\n")
    no_torch.chmod(0o755)
    built_with = torch.__version__.split("+")[0]
    other = fake_torch(tmp_path / "other", "2.99.1")
    python = f"-DPython_EXECUTABLE={no_torch}"

    def message(*options, **more):
        result = configure(root, "app", "refused", *options, **more)
        assert result.returncode != 0, result.stdout
        return " ".join(result.stderr.split())

    text = message(python)
    assert f"LibTorch was not found: {no_torch} has no package torch" in text
    assert "-DZEROSHARD_TORCH_ROOT=FOLDER" in text
    for torch_root, prefixes in ((other, ()), ("", [other])):
        text = message(python, f"-DZEROSHARD_TORCH_ROOT={torch_root}", prefixes=prefixes)
        assert f"built with LibTorch {built_with}, but that in {other} (by " in text
        assert ") is 2.99.1, and" in text
    text = message(f"-DZEROSHARD_TORCH_ROOT={tmp_path}")
    assert f"LibTorch was not found: {tmp_path} holds no include/torch" in text

    where = [torch.utils.cmake_prefix_path]
    found = configure(root, "app", "refused", python, "-DZEROSHARD_TORCH_ROOT=", prefixes=where)
    assert found.returncode == 0, found.stderr
    folder = os.path.dirname(torch.__file__)
    assert f"zeroshard: LibTorch {built_with} in {folder} (by CMAKE_PREFIX_PATH" in found.stdout


def test_other_requests_are_refused(root, tmp_path):
    for request, message in (
        ("zeroshard 0.2 REQUIRED COMPONENTS core", "compatible with requested version"),
        ("zeroshard REQUIRED COMPONENTS cuda", "zeroshard has no component 'cuda': there are zeroshard"),
    ):
        text = f"cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nfind_package({request})\n"
        (tmp_path / "CMakeLists.txt").write_text(text)
        command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={root / 'prefix'}"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode != 0
        assert message in " ".join(result.stderr.split())


def test_add_subdirectory(tmp_path):
    """Without installing: zeroshard inside of another project, with none of its tests and programs for developers."""
    text = f"""cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES CXX)
add_subdirectory({REPOSITORY} zeroshard)
add_executable(program {PROJECTS}/app/own_model.cpp)
target_link_libraries(program PRIVATE zeroshard::zeroshard)
"""
    (tmp_path / "CMakeLists.txt").write_text(text)
    folder = str(tmp_path / "build")
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DZEROSHARD_UNITY=OFF"]  # so that steps name the files
    call("cmake", "-G", "Ninja", "-S", str(tmp_path), "-B", folder, *options)
    steps = call("ninja", "-C", folder, "-t", "commands", "program")  # what would be run; nothing is
    assert f"{REPOSITORY}/src/engine/engine.cpp" in steps
    assert f"{REPOSITORY}/lm/" not in steps
    targets = call("ninja", "-C", folder, "-t", "targets", "all")
    programs = re.findall(r"^(\S+): CXX_EXECUTABLE_LINKER", targets, re.MULTILINE)
    assert sorted(programs) == ["program", "zeroshard/cli/zeroshard", "zeroshard/cli/zeroshard-torch"]


def test_names_stay_in_the_namespace(root):
    """What the archives define for good, and could clash with a user's, is in zeroshard:: alone."""
    for archive in ARCHIVES:
        symbols = call("nm", "-C", "--defined-only", str(root / "prefix" / "lib" / archive))
        strong = re.findall(r"^[0-9a-f]+ [TDBR] (.*)$", symbols, re.MULTILINE)
        assert len(strong) > 100
        assert [name for name in strong if "zeroshard::" not in name] == []


def test_the_python_package_has_none_of_it():
    """The last `cmake --install` without a component was that of the Python package, if this build is one's."""
    manifest = BUILD / "install_manifest.txt"
    if not (manifest.exists() and "SKBUILD:" in (BUILD / "CMakeCache.txt").read_text()):
        pytest.skip("not a build of the Python package")
    installed = {re.sub(r".*/(scripts|platlib)/", "", line) for line in manifest.read_text().splitlines()}
    core = f"zeroshard/cores/{pathlib.Path(zeroshard._C.__file__).parent.name}"
    assert {name for name in installed if not name.endswith("libzeroshard_parquet.so")} == {
        "zeroshard",
        f"{core}/_C.so",
        f"{core}/zeroshard-torch",
    }


def test_the_documented_program_is_this_one():
    text = (REPOSITORY / "docs" / "library.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```cpp\n(#include.*?)```", text, re.DOTALL)
    source = (PROJECTS / "app" / "own_model.cpp").read_text(encoding="utf-8")
    parts = [part.strip("\n") for part in program.split("// ...\n")]
    assert [part for part in parts if part not in source] == []
    assert len(parts) > 2


def test_without_lm(tmp_path):
    """ZEROSHARD_WITH_LM=OFF: the library, its tests, programs and the Python package are built of nothing in lm/."""
    options = [f"-DPython_EXECUTABLE={sys.executable}", "-DZEROSHARD_WITH_LM=OFF", "-DZEROSHARD_UNITY=OFF"]
    call("cmake", "-G", "Ninja", "-S", str(REPOSITORY), "-B", str(tmp_path), *options)
    steps = call("ninja", "-C", str(tmp_path), "-t", "commands", "all", "zs_tests", "package_parts")
    assert f"{REPOSITORY}/src/engine/engine.cpp" in steps
    for word in (f"{REPOSITORY}/lm/", "pcre2", "utf8proc", "zeroshard-torch"):
        assert word not in steps
