#!/usr/bin/env bash
# Compiles and links the Python package and the programs against another torch than that of .venv, for ranks on the CPU.
# Nothing is run: its libraries may need CUDA's, which are not downloaded.
#   tools/torch_check.sh VERSION [TARGET...]      2.15.0; without targets: package_parts
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?"which torch? For example: make torch-check TORCH=2.15.0"}
shift
[ $# -gt 0 ] || set -- package_parts
root=.cache/torch-$version
build=build/torch-check-$version
tools/unpack_torch.sh "$version" "$root"
mkdir -p build
exec 9>"$build.lock"
flock --nonblock 9 || { echo "torch-check: another check of torch $version is running here" >&2; exit 1; }
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_MAKE_PROGRAM="$PWD/.venv/bin/ninja" -DZEROSHARD_CUDA=OFF \
  -DZEROSHARD_TORCH_ROOT="$PWD/$root/torch" -DPython_EXECUTABLE="$PWD/.venv/bin/python" \
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined >"$build.log" \
  || { tail -n 20 "$build.log" >&2; exit 1; }
cmake --build "$build" --target "$@"
echo "torch-check: zeroshard compiles and links against torch $version; nothing was run"
