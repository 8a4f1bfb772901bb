#!/usr/bin/env bash
# Creates .venv-peers: the libraries that bench/step.py and bench/train.py compare zeroshard with, at fixed versions.
# Usage: bench/setup_peers.sh [python]   (default: python3; needs 2 GB of disk, no GPU)
# bench/offload_peers.py compiles two ops of DeepSpeed at its first run (4 minutes) and needs the package libaio-dev.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${1:-python3}"
venv="$root/.venv-peers"

if [[ ! -x "$venv/bin/python" ]]; then
  "$python" -m venv "$venv"
fi
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)

# torch first and alone: the packages below accept it and then fetch no other build.
"${pip[@]}" "torch==2.13.0"
"${pip[@]}" setuptools wheel ninja py-cpuinfo
"${pip[@]}" "transformers==5.23.0" "accelerate==1.15.0" psutil numpy
# DeepSpeed's build imports torch, so it must see this environment; no op is compiled ahead of time.
DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "${pip[@]}" --no-build-isolation "deepspeed==0.19.8"

DS_ACCELERATOR=cpu "$venv/bin/python" - <<'PY'
import deepspeed
import torch
import transformers

print(f"torch {torch.__version__}, transformers {transformers.__version__}, deepspeed {deepspeed.__version__}")
PY
