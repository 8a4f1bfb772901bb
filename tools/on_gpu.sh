#!/usr/bin/env bash
# Builds the CUDA variant on a GPU machine without a network and runs what needs a GPU, in at most 9 minutes.
#   tools/on_gpu.sh --pack                 here: fills the carry folder with the headers such a machine lacks (apt-get)
#   tools/on_gpu.sh --prebuild             here, after tools/cuda_check.sh or with its wheel: compiles for one card
#                                          (ZEROSHARD_GPU_ARCH, default 90) into the carry folder; nothing is built there
#   tools/on_gpu.sh [STEP...]              there: all steps, or those named
#   tools/on_gpu.sh --rehearse [STEP...]   here: the same steps, limits and results without a GPU: an existing build
#                                          (ZEROSHARD_BUILD_DIR), the simulated device and the CPU in the card's place
#   tools/on_gpu.sh --list                 the steps, their limits in seconds and what they show
# ZEROSHARD_CARRY names the carry folder (default .cache/carry, about 8 MB). The machine brings Python 3.12 with a
# CUDA torch and pytest, cmake, ninja, g++ and nvcc. ZEROSHARD_GPU_SECONDS: all steps together (default 530); a step gets its
# own limit or what is left. ZEROSHARD_GPU_LIMITS="build=300 save=9" replaces limits of steps.
# $OUT (default build/gpu/out) has seven files, each written as the run goes: summary.json and summary.md with the
# state of each step (passed, failed, cut off, skipped, running, not reached), bench.json, bench.md, and the logs.
set -uo pipefail
cd "$(dirname "$0")/.."

carry=$(realpath -m "${ZEROSHARD_CARRY:-.cache/carry}")
total=${ZEROSHARD_GPU_SECONDS:-530}
rehearse=${ZEROSHARD_GPU_REHEARSE:-}
kSkipped=77

# Name, limit in seconds, log, what it shows. In the order of what matters; benchmarks last.
steps=(
  "machine 20 build.log what this machine is, and that torch sees a GPU"
  "build 240 build.log the kernels for this card alone, the test programs, the Python package"
  "kernels 40 tests.log kernels have the bits of the CPU's: all types, lengths, alignments"
  "engine 45 tests.log C++ engine: one result at every stage, near the CPU's; streams of the user's"
  "digests 75 tests.log Python: the CPU's digest at every stage; one rank, and three that share the card"
  "offload 150 tests.log Python: states, gradients and parameters on the host and in files, beside the GPU"
  "python 60 tests.log Python: streams of the user's, memory as planned, checkpoints"
  "faults 60 tests.log a rank that dies or stops: CommError on the others, soon"
  "memcheck 50 tests.log compute-sanitizer finds no wrong access in kernels and in a short run"
  "racecheck 30 tests.log compute-sanitizer finds no race in the sum of squares"
  "build_lm 75 build.log the programs that train and generate"
  "lm 90 tests.log whatever other Python tests need a GPU: zeroshard train and generate"
  "step_125m 45 bench.log a step of a 125 M Llama beside plain PyTorch and FSDP2"
  "offload_1b 140 bench.log a step of a 1.3 B Llama with offload beside FSDP2's CPUOffloadPolicy"
  "optimizer 25 bench.log the update beside the card's bandwidth"
  "host 45 bench.log time of the host for each unit"
  "save 40 bench.log how long a save stops training"
  "memory 25 bench.log context, NCCL, allocator"
  "step_1b 70 bench.log a step of a 1.3 B Llama beside plain PyTorch and FSDP2"
)

if [ -n "$rehearse" ]; then
  build=$(realpath -m "${ZEROSHARD_BUILD_DIR:-build/release}")
  python=${PYTHON:-.venv/bin/python}
  mark="not cuda"
  bench=(--device cpu --small)
else
  build=$PWD/build/gpu
  prebuilt=
  if [ -e "$carry/build/site" ]; then build=$carry/build prebuilt=1; fi
  python=${PYTHON:-python3}
  mark=cuda
  bench=()
fi

# ---- what each step does; runs in a process of its own -----------------------------------------------------------------

step_machine() {
  uname -srm
  echo "$(nproc) cores, $(free -g | awk '/^Mem:/ {print $2}') GiB of memory"
  if command -v nvidia-smi >/dev/null; then nvidia-smi; fi
  "$python" -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)' || return
  [ -n "$rehearse" ] || "$python" -c 'import torch; assert torch.cuda.is_available(), "torch sees no GPU"'
}

configure() {
  local options=(-DZEROSHARD_CUDA=ON "-DPython_EXECUTABLE=$(command -v "$python")" "-DCMAKE_PREFIX_PATH=$carry/usr"
    -DCMAKE_BUILD_TYPE=Release -DZEROSHARD_BUILD_BENCH=OFF -DSKBUILD=2 -DSKBUILD_SCRIPTS_DIR=bin) card
  [ -d "$carry/usr" ] || echo "no carry folder at $carry: using this machine's own headers"
  [ -z "${ZEROSHARD_TORCH_ROOT:-}" ] || options+=("-DZEROSHARD_TORCH_ROOT=$(realpath "$ZEROSHARD_TORCH_ROOT")")
  # "9.0" is 90. Without an answer: for all cards.
  card=${ZEROSHARD_GPU_ARCH:-$(nvidia-smi --id=0 --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. \n')}
  [ -z "$card" ] || options+=("-DZEROSHARD_CUDA_ARCHITECTURES=$card")
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    options+=("-DPython_INCLUDE_DIR=$carry/include/python3.12")
  cmake -S . -B "$build" -G Ninja "${options[@]}"
}

# Goes on after an error: what can be built is tested.
compile() {
  cmake --build "$build" --parallel "${JOBS:-$(nproc)}" --target "$@" -- -k 0
}

step_build() {
  if [ -n "$rehearse" ]; then
    ls -l "$build"/tests/test_accelerator "$build"/tests/zs_simulated_device.so
    return
  fi
  if [ -n "$prebuilt" ]; then
    for program in tests/test_device_cuda tests/test_world_cuda cli/zeroshard-torch; do
      ldd "$build/$program" | grep "not found" && return 1
    done
    "$python" -c 'import zeroshard; print("built elsewhere:", zeroshard._C.__file__)'
    return
  fi
  # A compiler that links a libstdc++ of its own statically would take functions from torch, as std::call_once, which
  # then crash: the shared one comes first.
  local shared rc=0
  shared=$(ldconfig -p | awk '/libstdc\+\+\.so\.6 .*x86-64/ {print $NF; exit}')
  [ -z "$shared" ] || export LDFLAGS="-Wl,--no-as-needed $shared${LDFLAGS:+ $LDFLAGS}"
  configure || return
  compile test_device_cuda test_world_cuda zs_python || rc=$?
  # Without Python's headers there is no target zs_python, and nothing was built.
  [ $rc -eq 0 ] || compile test_device_cuda test_world_cuda
  make_site "$build" && return $rc
}

# A plain package in $1/site, beside the build: the compiled parts and the Python files.
make_site() {
  rm -rf "$1/site"
  mkdir -p "$1/site/zeroshard"
  cp -r python/zeroshard/. "$1/site/zeroshard/"
  cmake --install "$build" --component core --prefix "$1/site"
}

step_kernels() {
  if [ -n "$rehearse" ]; then
    "$build/tests/test_accelerator" --gtest_filter='SimulatedKernels.Pack:SimulatedKernels.SumInOrder'
  else
    "$build/tests/test_device_cuda"
  fi
}

step_engine() {
  if [ -n "$rehearse" ]; then
    "$build/tests/test_accelerator" --gtest_filter='*DeviceTraining.StreamsOfTheUsers*/3'
  else
    "$build/tests/test_world_cuda"
  fi
}

# Several at once where pytest-xdist is there: most of a test's time is a process that starts.
python_tests() {
  local parallel=()
  if [ -z "$rehearse" ] && "$python" -c 'import xdist' 2>/dev/null; then parallel=(-n "${ZEROSHARD_GPU_WORKERS:-4}"); fi
  "$python" -m pytest -v -p no:cacheprovider --tb=short -rsP "${parallel[@]}" "$@"
}

step_digests() {
  if [ -n "$rehearse" ]; then
    python_tests tests/python/train/test_cuda.py -m "$mark" -k "digest_is and simulated and fp32"
  else
    python_tests tests/python/train/test_cuda.py -m "$mark" -k digest
  fi
}

step_offload() {
  if [ -n "$rehearse" ]; then
    python_tests tests/python/offload/test_placement_matrix.py -k cpu
  else
    python_tests tests/python/offload/test_cuda_offload.py tests/python/offload/test_placement_matrix.py -m "$mark"
  fi
}

step_python() {
  python_tests tests/python/train/test_cuda.py -m "$mark and not fault" -k "not digest${rehearse:+ and goes_on and cpu}"
}

step_faults() {
  python_tests tests/python/train/test_cuda.py -m "$mark and fault" ${rehearse:+-k SIGKILL}
}

sanitizer() {
  local tool=$1 program
  shift
  if ! program=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer); then
    echo "there is no compute-sanitizer"
    return $kSkipped
  fi
  # Errors of the API that torch itself asks for and handles are no finding.
  "$program" --tool "$tool" --report-api-errors no --error-exitcode 1 "$@"
}

step_memcheck() {
  sanitizer memcheck "$build/tests/test_device_cuda" --gtest_filter='*Many*:*SumInOrder:*AddSquares*' || return
  sanitizer memcheck "$build/tests/test_world_cuda" --gtest_filter='*EveryStage*/3'
}

step_racecheck() {
  sanitizer racecheck "$build/tests/test_device_cuda" --gtest_filter='*AddSquares*'
}

step_build_lm() {
  if [ -n "$rehearse$prebuilt" ]; then
    ls -l "$build"/cli/zeroshard*
  else
    compile zeroshard_cli zeroshard_torch
  fi
}

step_lm() {
  local files
  files=$(grep -lE 'mark\.cuda|devices\.(CUDA|NEEDS_GPU)' tests/python/*/test_*.py | grep -vE '/test_(cuda(_offload)?|placement_matrix).py')
  if [ -z "$files" ] || [ -n "$rehearse" ]; then
    echo "no other file of tests that need a GPU is run here: ${files:-there is none}"
    return $kSkipped
  fi
  # shellcheck disable=SC2086
  ZEROSHARD_BUILD_DIR=$build python_tests $files -m "$mark"
}

step_step_125m() { "$python" bench/step_gpu.py --shape 125m "${bench[@]}"; }
step_step_1b() { "$python" bench/step_gpu.py --shape 1.3b --rounds 5 --steps 3 "${bench[@]}"; }
step_offload_1b() { "$python" bench/offload_gpu.py --shape 1.3b "${bench[@]}"; }
step_optimizer() { "$python" bench/optimizer_gpu.py "${bench[@]}"; }
step_host() { "$python" bench/host_gpu.py "${bench[@]}"; }
step_save() { "$python" bench/save_gpu.py "${bench[@]}"; }
step_memory() { "$python" bench/memory_gpu.py "${bench[@]}"; }

# ---- the run -----------------------------------------------------------------------------------------------------------

declare -A limit log shows state code took
names=()
child="" current=""

read_steps() {
  local line name seconds file text pair
  for line in "${steps[@]}"; do
    read -r name seconds file text <<<"$line"
    names+=("$name")
    limit[$name]=$seconds log[$name]=$file shows[$name]=$text state[$name]="not reached" code[$name]=null took[$name]=0
  done
  for pair in ${ZEROSHARD_GPU_LIMITS:-}; do
    [ -n "${limit[${pair%%=*}]:-}" ] || { echo "on_gpu: there is no step ${pair%%=*}" >&2 && exit 2; }
    limit[${pair%%=*}]=${pair#*=}
  done
}

say() { echo "on_gpu [$SECONDS s] $*"; }

# A reader, or a run that is killed, finds the old file or the new one.
put() {
  cat >"$out/.$1.unfinished" && mv "$out/.$1.unfinished" "$out/$1"
}

summarize() {
  local all=$1 name separator=""
  {
    printf '{"state": "%s", "seconds": %d, "limit": %d, "rehearsal": %s, "steps": [' \
      "$all" "$SECONDS" "$total" "$([ -n "$rehearse" ] && echo true || echo false)"
    for name in "${names[@]}"; do
      printf '%s\n  {"name": "%s", "state": "%s", "exit_code": %s, "seconds": %d, "limit": %d, "log": "%s"}' \
        "$separator" "$name" "${state[$name]}" "${code[$name]}" "${took[$name]}" "${limit[$name]}" "${log[$name]}"
      separator=,
    done
    printf '\n]}\n'
  } | put summary.json
  {
    echo "# On a GPU${rehearse:+: a rehearsal without one}: $all after $SECONDS s"
    echo "| step | shows | state | s |"
    echo "|---|---|---|---|"
    for name in "${names[@]}"; do
      echo "| $name | ${shows[$name]} | ${state[$name]} | ${took[$name]} |"
    done
    if [ -e "$out/bench.md" ]; then echo && cat "$out/bench.md"; fi
  } | put summary.md
}

# The step that runs, and all that it has started.
end_step() {
  [ -n "$child" ] || return
  kill -TERM "$child" 2>/dev/null
  wait "$child" 2>/dev/null
  child=""
}

interrupted() {
  trap '' TERM INT HUP
  end_step
  if [ -n "$current" ]; then state[$current]="cut off" took[$current]=$((SECONDS - began)); fi
  summarize "cut off"
  say "interrupted in step ${current:-none}: what there is lies in $out"
  exit 143
}

run_step() {
  local name=$1 left=$((total - SECONDS)) rc=0 seconds
  seconds=$((limit[$name] < left ? limit[$name] : left))
  if [ $left -lt 3 ]; then return; fi
  began=$SECONDS current=$name state[$name]=running
  summarize running
  say "$name: ${shows[$name]} (at most $seconds s)"
  printf '\n==== %s: %s\n' "$name" "${shows[$name]}" >>"$out/${log[$name]}"
  # In a group of processes of its own, which ends as a whole.
  timeout --kill-after=5 "$seconds" bash tools/on_gpu.sh --step "$name" >>"$out/${log[$name]}" 2>&1 &
  child=$!
  wait "$child" || rc=$?
  child="" current=""
  took[$name]=$((SECONDS - began)) code[$name]=$rc
  case $rc in
    0) state[$name]=passed ;;
    "$kSkipped") state[$name]=skipped ;;
    124) state[$name]="cut off" ;;
    137) if [ "${took[$name]}" -ge "$seconds" ]; then state[$name]="cut off"; else state[$name]=failed; fi ;;
    *) state[$name]=failed ;;
  esac
  if [ "${state[$name]}" != passed ]; then
    say "$name: ${state[$name]} after ${took[$name]} s"
    tail -n 25 "$out/${log[$name]}" | sed 's/^/    /'
  fi
}

run() {
  local name wanted=" $* " all=passed
  out=$(realpath -m "${OUT:-build/gpu/out}")
  export OUT=$out ZEROSHARD_GPU_REHEARSE=$rehearse PYTHONUNBUFFERED=1
  mkdir -p "$out"
  rm -f "$out"/{summary,bench}.{json,md} "$out"/{build,tests,bench}.log
  if [ -z "$rehearse" ]; then
    export PYTHONPATH=$build/site${PYTHONPATH:+:$PYTHONPATH}
    # A machine without a network may not know its own name.
    export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo} NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
    if [ -n "$prebuilt" ]; then LD_LIBRARY_PATH=$build/lib:$(libraries_of_torch)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
  fi
  trap interrupted TERM INT HUP
  for name in "${names[@]}"; do
    [ "$wanted" = "  " ] || [[ "$wanted" = *" $name "* ]] || continue
    run_step "$name"
    case "${state[$name]}" in
      failed | "cut off" | "not reached") all=failed ;;
    esac
    summarize running
    if [ "$name" = machine ] && [ "${state[$name]}" = failed ]; then break; fi
  done
  summarize "$all"
  cat "$out/summary.md"
  say "$all: $out"
  [ "$all" = passed ]
}

# ---- before the run ----------------------------------------------------------------------------------------------------

# A Python 3.12 of this machine with its headers, if there is one.
find_python() {
  local candidate
  for candidate in "${CUDA_PYTHON:-}" "$HOME"/.pyenv/versions/3.12*/bin/python3.12 /usr/bin/python3.12; do
    [ -x "$candidate" ] || continue
    include=$("$candidate" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    if [ -e "$include/Python.h" ]; then python=$candidate && return; fi
  done
  return 1
}

pack() (
  set -e
  mkdir -p "$carry/debs"
  rm -rf "$carry/usr" "$carry/include"
  packages=(nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev libgloo-dev libxxhash-dev libpcre2-dev libutf8proc-dev)
  (cd "$carry/debs" && rm -f ./*.deb && apt-get download -q "${packages[@]}")
  for deb in "$carry"/debs/*.deb; do dpkg -x "$deb" "$carry"; done
  # Headers, gtest's static library and the CMake files stay: no gtest sources, documents or gloo libraries.
  rm -rf "$carry/debs" "$carry/usr/src" "$carry/usr/share/doc"
  find "$carry" -name 'libgloo*' -delete
  # The headers of Python 3.12, for a machine whose Python has none.
  if find_python; then
    mkdir -p "$carry/include"
    cp -rL "$include" "$carry/include/python3.12"
    packages+=("Python's headers")
  fi
  say "packed ${packages[*]} into $carry ($(du -sh "$carry" | cut -f1))"
)

# Programs that were linked elsewhere do not know where this machine's torch lies.
libraries_of_torch() {
  "$python" -c 'import glob, os, torch
root = os.path.dirname(torch.__file__)
print(":".join([root + "/lib", *sorted(glob.glob(os.path.dirname(root) + "/nvidia/*/lib"))]))'
}

# For a machine whose time is short: what step_build and step_build_lm make, stripped.
prebuild() (
  set -e
  version=${CUDA_TORCH_VERSION:-2.11.0}
  root=$PWD/.cache/cuda/torch-$version/torch
  [ -e "$root/.complete" ] || { echo "on_gpu: there is no $root: run tools/cuda_check.sh first" >&2 && exit 2; }
  find_python || { echo "on_gpu: there is no Python 3.12 with its headers: name one in CUDA_PYTHON" >&2 && exit 2; }
  export ZEROSHARD_TORCH_ROOT=$root ZEROSHARD_GPU_ARCH=${ZEROSHARD_GPU_ARCH:-90}
  configure
  compile test_device_cuda test_world_cuda zs_python zeroshard_cli zeroshard_torch
  rm -rf "$carry/build"
  mkdir -p "$carry/build/tests" "$carry/build/cli"
  cp "$build"/tests/test_*_cuda "$carry/build/tests/"
  cp "$build"/cli/zeroshard "$build"/cli/zeroshard-torch "$carry/build/cli/"
  make_site "$carry/build"
  # Of the system's libraries, those that another machine may lack.
  mkdir -p "$carry/build/lib"
  ldd "$build/cli/zeroshard-torch" | awk '/pcre2|utf8proc|uring/ {print $3}' | xargs -I {} cp -L {} "$carry/build/lib/"
  rm -f "$carry"/build/site/zeroshard/cores/*/zeroshard-torch
  strip "$carry"/build/{tests,cli}/* "$carry"/build/site/zeroshard/cores/*/_C.so
  say "built into $carry/build ($(du -sh "$carry/build" | cut -f1))"
)

read_steps
case "${1:-}" in
  --pack) pack ;;
  --prebuild)
    build=$PWD/build/gpu
    prebuild
    ;;
  --list)
    for name in "${names[@]}"; do printf '%-10s %4d  %s\n' "$name" "${limit[$name]}" "${shows[$name]}"; done
    ;;
  --step) "step_$2" ;;
  --rehearse)
    shift
    exec env ZEROSHARD_GPU_REHEARSE=1 OUT="${OUT:-build/rehearsal}" bash tools/on_gpu.sh "$@"
    ;;
  -*)
    sed -n '2,16s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
  *)
    for name in "$@"; do
      [ -n "${limit[$name]:-}" ] || { echo "on_gpu: there is no step $name: see --list" >&2 && exit 2; }
    done
    run "$@"
    ;;
esac
