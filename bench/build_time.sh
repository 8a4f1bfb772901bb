#!/usr/bin/env bash
# What a clean build costs without a compiler cache: for each part (a target of CMake) its steps, processor seconds and
# largest process, for two revisions in turns. The builds lie in build/build_time; the table goes to standard output.
#   bench/build_time.sh [OLD [NEW]]                          HEAD~1 and HEAD
#   PARTS="zs_config test_config" bench/build_time.sh main   these parts alone
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
ninja=$PWD/.venv/bin/ninja
folder=$PWD/build/build_time
trees=(old new)
revisions=("${1:-HEAD~1}" "${2:-HEAD}")
export CCACHE_DISABLE=1

for i in 0 1; do
  rm -rf "${folder:?}/${trees[i]}"
  mkdir -p "$folder/${trees[i]}"
  git archive "${revisions[i]}" | tar -x -C "$folder/${trees[i]}"
  compiler=$("$folder/${trees[i]}/tools/compiler.sh" 2>/dev/null) || compiler=${CXX:-}  # the revision's own choice
  CXX=$compiler cmake -S "$folder/${trees[i]}" -B "$folder/${trees[i]}/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_MAKE_PROGRAM="$ninja" -DPython_EXECUTABLE="$python" >"$folder/${trees[i]}.log"
done

# objects_of TREE TARGET PART: those of the part among what the target is made of.
objects_of() {
  "$ninja" -C "$folder/$1/build" -t inputs "$2" | grep -E "/$3\.dir/.*\.(o|gch|pch)\$" || true
}

# Prints the steps, processor seconds and megabytes of a build of these objects.
measure() {
  local tree=$1
  shift
  "$python" - "$#" "$ninja" -C "$folder/$tree/build" -j"${JOBS:-2}" "$@" <<'PYTHON'
import os, sys
steps, *command = sys.argv[1:]
silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
_, status, use = os.wait4(os.posix_spawn(command[0], command, os.environ, file_actions=silent), 0)
print(steps, f"{use.ru_utime + use.ru_stime:.1f}", use.ru_maxrss // 1024)
sys.exit(1 if status else 0)
PYTHON
}

parts=${PARTS:-$(find "$folder"/*/build -type d -path '*/CMakeFiles/*.dir' -prune -printf '%f\n' | sed 's/\.dir$//' | sort -u)}
printf '%-24s %-8s %5s %9s %6s   %5s %9s %6s\n' part of steps seconds MB steps seconds MB
for part in zs_torch_pch $parts; do
  [ "$part" != zs_torch_pch ] || [ -z "${measured_header:-}" ] || continue
  measured_header=1
  row=() of=package
  for tree in "${trees[@]}"; do
    mapfile -t objects < <(objects_of "$tree" all "$part")
    [ -n "$(objects_of "$tree" package_parts "$part")" ] || of=tests
    if [ ${#objects[@]} -gt 0 ]; then row+=($(measure "$tree" "${objects[@]}")); else row+=(0 0 0); fi
  done
  [ "${row[0]}${row[3]}" = 00 ] || printf '%-24s %-8s %5s %9s %6s   %5s %9s %6s\n' "$part" "$of" "${row[@]}"
done | tee "$folder/table"
awk '{ for (key in keys) delete keys[key]; keys["all"]; keys[$2]
       for (key in keys) { steps[key] += $3; seconds[key] += $4; new_steps[key] += $6; new_seconds[key] += $7 } }
     END { for (key in steps) printf "total: %-17s %-8s %5d %9.1f %6s   %5d %9.1f   ratio %.2f\n", key, "", steps[key],
           seconds[key], "", new_steps[key], new_seconds[key], new_seconds[key] / (seconds[key] ? seconds[key] : 1) }' "$folder/table"
