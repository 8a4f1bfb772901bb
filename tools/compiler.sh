#!/usr/bin/env bash
# Prints the C++ compiler that make builds with: CXX if that is set, otherwise the newest clang from 16 to 21, otherwise
# c++. Clang compiles zeroshard in half of the time that GCC takes, to the same results. It is taken where it finds a
# standard library with ranges, its sanitizers, and the program that names functions in their reports.
set -euo pipefail
if [ -n "${CXX:-}" ]; then
  echo "$CXX"
  exit
fi
program=$(mktemp)
trap 'rm -f "$program"' EXIT
compiles() {
  command -v "clang++-$1" >/dev/null && command -v "llvm-symbolizer-$1" >/dev/null &&
    printf '#include <ranges>\nint main() {}\n' | "clang++-$1" -std=c++20 -fsanitize=address -x c++ - -o "$program" 2>/dev/null
}
compiler=c++
for version in {21..16}; do
  if compiles $version; then
    compiler=clang++-$version
    break
  fi
done
echo "$compiler"
