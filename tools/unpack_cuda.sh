#!/usr/bin/env bash
# Puts what the CUDA variant is compiled with under a folder: nvcc and the runtime of CUDA 13, and the headers of the
# libraries that torch's own headers include. No GPU, driver or toolkit is needed. cmake/ZeroshardTorch.cmake looks for
# the folder nvidia/ beside torch/.
#   tools/unpack_cuda.sh FOLDER      FOLDER gets nvidia/
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1/nvidia
[ ! -e "$folder/.complete" ] || exit 0
echo "unpack_cuda: downloading CUDA's compiler, and libraries for their headers (about 1.3 GB)"
mkdir -p "$folder"
.venv/bin/python -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
  --platform manylinux_2_27_x86_64 --platform manylinux_2_18_x86_64 --platform manylinux2014_x86_64 \
  --platform manylinux2010_x86_64 -d "$folder/wheels" \
  nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
  nvidia-cuda-cccl==13.0.85 nvidia-nccl-cu13==2.28.9 nvidia-cublas==13.1.0.3 nvidia-cusparse==12.6.3.3 \
  nvidia-cusolver==12.0.4.66
.venv/bin/python - "$folder/wheels" "$1" <<'PY'
import pathlib, sys, zipfile
compiler = ("nvidia_cuda_nvcc", "nvidia_nvvm", "nvidia_cuda_crt", "nvidia_cuda_runtime", "nvidia_cuda_cccl")
for path in pathlib.Path(sys.argv[1]).glob("*.whl"):
    with zipfile.ZipFile(path) as wheel:
        whole = path.name.startswith(compiler)
        wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if whole or "/include/" in name])
PY
rm -rf "$folder/wheels" "$1"/nvidia_*.dist-info
chmod +x "$folder"/cu13/bin/* "$folder"/cu13/nvvm/bin/*
ln -sf libcudart.so.13 "$folder/cu13/lib/libcudart.so"
touch "$folder/.complete"
