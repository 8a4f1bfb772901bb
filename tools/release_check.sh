#!/usr/bin/env bash
# What is checked before a release: every test, faults, mutants and fuzzers at their largest sizes. All of it takes most
# of a day on two cores, so it is cut into parts that take 80 minutes or less each.
#   tools/release_check.sh              the parts, and how long each takes
#   tools/release_check.sh PART...      runs them; the last line of each says whether it passed
# What has passed, and on which commit, is written in docs/reliability.md ("The last full run").
set -euo pipefail
cd "$(dirname "$0")/.."
mutant_parts=8
fuzz_seconds=600  # for each fuzzer

list() {
  echo "tests        45 minutes: make test-all"
  echo "faults       80 minutes: make test-faults"
  echo "gcc          20 minutes: make gcc"
  for part in $(seq $mutant_parts); do echo "mutants-$part    80 minutes: a part of tests/mutants/run.py"; done
  echo "fuzz         $((7 * fuzz_seconds / 60)) minutes: $((fuzz_seconds / 60)) for each fuzzer and the build; needs clang"
}

run_part() {
  case "$1" in
    tests) make test-all ;;
    faults) make test-faults ;;
    gcc) make gcc AGAIN=2 ;;
    mutants-[1-"$mutant_parts"]) make build && .venv/bin/python tests/mutants/run.py --part "${1#*-}/$mutant_parts" ;;
    fuzz) fuzz ;;
  esac
}

fuzz() {
  CXX=$(tools/compiler.sh) cmake --preset fuzz >/dev/null && cmake --build --preset fuzz || return 1
  local fuzzer name dictionary
  for fuzzer in build/fuzz/fuzz/fuzz_*; do
    [ -x "$fuzzer" ] && [ -f "$fuzzer" ] || continue
    name=${fuzzer##*/fuzz_}
    dictionary=fuzz/$name.dict
    mkdir -p "build/fuzz/found/$name"
    "$fuzzer" -max_total_time=$fuzz_seconds -artifact_prefix="build/fuzz/found/$name-" \
      ${dictionary:+$([ -f "$dictionary" ] && echo "-dict=$dictionary")} "build/fuzz/found/$name" "fuzz/corpus/$name" || return 1
  done
}

if [ $# -eq 0 ]; then
  list
  exit 0
fi
parts=$(list)
for part in "$@"; do
  grep -q "^$part " <<<"$parts" || { echo "release_check: there is no part $part; these are there:" >&2; list >&2; exit 2; }
done
for part in "$@"; do
  began=$SECONDS
  result=passed
  run_part "$part" || result=FAILED
  echo "release_check: $part $result on $(git rev-parse --short HEAD) after $((SECONDS - began)) s"
  [ $result = passed ] || exit 1
done
