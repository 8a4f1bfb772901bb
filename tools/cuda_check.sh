#!/usr/bin/env bash
# Compiles and links the CUDA variant on a machine without a GPU, against the CUDA wheel of torch: its headers and
# libraries are unpacked under .cache/, and nothing is run.
#   tools/cuda_check.sh [TARGET...]     (default: everything)
set -euo pipefail
cd "$(dirname "$0")/.."

version=${CUDA_TORCH_VERSION:-2.11.0}
cache=.cache/cuda
root=$cache/torch-$version/torch
tools/unpack_torch.sh "$version" "$(dirname "$root")" --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64
[ -e "$root/lib/libtorch_cuda.so" ] || { echo "cuda-check: $root has no libtorch_cuda.so: not a CUDA wheel" >&2; exit 1; }

tools/unpack_cuda.sh "$cache/torch-$version" || echo "cuda-check: without them kernels are left out, and NCCL" >&2

# Cards that the wheel has kernels for and zeroshard has none are cards on which torch works and zeroshard does not.
theirs=$(grep -aoE '(sm_[0-9]+ )+sm_[0-9]+' "$root/lib/libtorch_python.so" | head -n 1 | sed 's/sm_//g; s/ /;/g')
ours=$(sed -nE 's/.*set\(ZEROSHARD_CUDA_ARCHITECTURES "([0-9;]+)".*/\1/p' cmake/ZeroshardTorch.cmake)
if [ "$theirs" != "$ours" ]; then
  echo "cuda-check: torch $version has kernels for '$theirs', ZEROSHARD_CUDA_ARCHITECTURES names '$ours'" >&2
  exit 1
fi

# The extension needs the headers of the wheel's own Python; without them the libraries and programs are still checked.
python=.venv/bin/python
extension=OFF
for candidate in "${CUDA_PYTHON:-}" python3.12 "$HOME"/.pyenv/versions/3.12*/bin/python3.12; do
  if [ -n "$candidate" ] && "$candidate" -c 'import os, sys, sysconfig
sys.exit(sys.version_info[:2] != (3, 12) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null; then
    python=$("$candidate" -c 'import sys; print(sys.executable)')
    extension=ON
    break
  fi
done
[ $extension = ON ] || echo "cuda-check: no Python 3.12 headers: the Python extension is left out"

cmake -S . -B build/cuda-check -G Ninja -DCMAKE_BUILD_TYPE=Release -DZEROSHARD_CUDA=ON \
  -DZEROSHARD_TORCH_ROOT="$PWD/$root" -DPython_EXECUTABLE="$python" -DZEROSHARD_BUILD_PYTHON=$extension
cmake --build build/cuda-check ${1:+--target "$@"}
echo "cuda-check: the CUDA variant compiles and links against torch $version (Python extension: $extension); nothing was run"
