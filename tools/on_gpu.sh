#!/usr/bin/env bash
# Builds the CUDA variant on a GPU machine without a network and runs what needs a GPU, in under 10 minutes.
#   tools/on_gpu.sh --pack        here: fills the carry folder with the headers such a machine lacks (needs apt-get)
#   tools/on_gpu.sh               there: build, ctest -L cuda, pytest -m cuda, GPU benchmarks
#   tools/on_gpu.sh --build-only  there, or here against the wheel that `make cuda-check` unpacked: build, list the tests
# ZEROSHARD_CARRY names the carry folder (default .cache/carry, about 4 MB). The machine brings Python 3.12 with a
# CUDA torch and pytest, cmake, ninja, g++ and nvcc. Logs and results go to $OUT when it is set, else to build/gpu/out.
set -euo pipefail
cd "$(dirname "$0")/.."

carry=$(realpath -m "${ZEROSHARD_CARRY:-.cache/carry}")
out=$(realpath -m "${OUT:-build/gpu/out}")
build=build/gpu
python=${PYTHON:-python3}
started=$SECONDS
say() { echo "on_gpu [$((SECONDS - started)) s] $*"; }

pack() {
  mkdir -p "$carry/debs"
  rm -rf "$carry/usr"
  local packages=(nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev libgloo-dev libxxhash-dev libpcre2-dev libutf8proc-dev)
  (cd "$carry/debs" && rm -f ./*.deb && apt-get download -q "${packages[@]}")
  for deb in "$carry"/debs/*.deb; do dpkg -x "$deb" "$carry"; done
  # Headers, gtest's static library and the CMake files stay: no gtest sources, documents or gloo libraries.
  rm -rf "$carry/debs" "$carry/usr/src" "$carry/usr/share/doc"
  find "$carry" -name 'libgloo*' -delete
  say "packed ${packages[*]} into $carry ($(du -sh "$carry" | cut -f1))"
}

build() {
  local options=(-DZEROSHARD_CUDA=ON "-DPython_EXECUTABLE=$(command -v "$python")" "-DCMAKE_PREFIX_PATH=$carry/usr"
    -DCMAKE_BUILD_TYPE=Release -DSKBUILD=2 -DSKBUILD_SCRIPTS_DIR=bin)
  [ -d "$carry/usr" ] || say "no carry folder at $carry: using this machine's own headers"
  [ -z "${ZEROSHARD_TORCH_ROOT:-}" ] || options+=("-DZEROSHARD_TORCH_ROOT=$(realpath "$ZEROSHARD_TORCH_ROOT")")
  cmake -S . -B $build -G Ninja "${options[@]}"
  cmake --build $build --parallel "${JOBS:-$(nproc)}"
  # A plain install beside the build: the compiled parts, then the Python files.
  cmake --install $build --prefix $build/site >/dev/null
  mkdir -p $build/site/zeroshard
  cp -r python/zeroshard/. $build/site/zeroshard/
  say "built"
}

# step NAME SECONDS COMMAND...: runs with a time limit, keeps the log, remembers a failure.
failed=()
step() {
  local name=$1 limit=$2 rc=0
  shift 2
  say "$name: $*"
  timeout "$limit" "$@" 2>&1 | tee "$out/$name.log" || rc=$?
  [ $rc -ne 124 ] || say "$name: stopped after $limit s"
  [ $rc -eq 0 ] || failed+=("$name ($rc)")
}

run_tests() {
  export PYTHONPATH=$PWD/$build/site${PYTHONPATH:+:$PYTHONPATH} PATH=$PWD/$build/site/bin:$PATH PYTHONUNBUFFERED=1
  "$python" -c 'import torch; assert torch.cuda.is_available(), "torch sees no GPU"; print(torch.cuda.get_device_name())'
  step ctest 100 ctest --test-dir $build -L cuda --output-on-failure
  step pytest 150 "$python" -m pytest -m cuda
  for bench in bench/*_gpu.py; do
    [ ! -e "$bench" ] || step "$(basename "$bench" .py)" 100 "$python" "$bench"
  done
}

case "${1:-}" in
  --pack) pack ;;
  --build-only)
    build
    ctest --test-dir $build -N -L cuda
    ;;
  "")
    mkdir -p "$out"
    build 2>&1 | tee "$out/build.log"
    run_tests
    if [ ${#failed[@]} -gt 0 ]; then
      say "FAILED: ${failed[*]}"
      exit 1
    fi
    say "all passed"
    ;;
  *)
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
