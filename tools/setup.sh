#!/usr/bin/env bash
# Checks the space on the disk of a fresh clone, and the system packages that the build needs. As root on a Debian-like
# system it installs what is missing; otherwise it prints what is missing, with the line that installs it, and exits 1.
set -euo pipefail
cd "$(dirname "$0")/.."

needed_gb=8  # torch, the packages and what is compiled
if ! compgen -G ".venv/.deps-torch-*" >/dev/null; then
  free_gb=$(($(df --output=avail -k . | tail -n 1) / 1048576))
  if [ "$free_gb" -lt "$needed_gb" ]; then
    echo "setup: $free_gb GB are free in $PWD, and a fresh clone needs $needed_gb GB: make room, or clone to another disk" >&2
    exit 1
  fi
fi

missing=()
have_header() { echo "#include <$1>" | c++ -x c++ -std=c++20 ${2:-} -fsyntax-only - 2>/dev/null; }
need_command() { command -v "$1" >/dev/null || missing+=("$2"); }
need_header() { have_header "$1" "${3:-}" || missing+=("$2"); }  # header, package, compiler option

# Prints the packages of the newest clang that tools/compiler.sh takes: also its sanitizers, and the program that names
# functions in their reports.
newest_clang() {
  local version
  for version in {21..16}; do
    if apt-cache show "clang-$version" >/dev/null 2>&1; then
      echo "clang-$version" "libclang-rt-$version-dev" "llvm-$version"
      return
    fi
  done
}

find_missing() {
  missing=()
  need_command make make
  need_command cmake cmake
  need_command git git
  if command -v c++ >/dev/null; then
    need_header nlohmann/json.hpp nlohmann-json3-dev
    need_header xxhash.h libxxhash-dev
    need_header CLI/CLI.hpp libcli11-dev
    need_header gtest/gtest.h libgtest-dev
    need_header gmock/gmock.h libgmock-dev
    need_header benchmark/benchmark.h libbenchmark-dev
    need_header gloo/config.h libgloo-dev
    need_header pcre2.h libpcre2-dev -DPCRE2_CODE_UNIT_WIDTH=8
    need_header utf8proc.h libutf8proc-dev
  else
    missing+=(g++ nlohmann-json3-dev libxxhash-dev libcli11-dev libgtest-dev libgmock-dev libbenchmark-dev libgloo-dev libpcre2-dev libutf8proc-dev)
  fi
  # A venv with pip in it, from the Python that will run zeroshard (a pyenv or conda one has it built in).
  "${PYTHON:-python3}" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
  "${PYTHON:-python3}" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null || missing+=(python3-dev)
  # Not required, and so installed only together with something that is: a compiler cache, a faster linker and compiler.
  optional=() clang=()
  command -v ccache >/dev/null || optional+=(ccache)
  command -v mold >/dev/null || optional+=(mold)
  command -v strace >/dev/null || optional+=(strace)  # some tests kill ranks at a system call
  [ "$(tools/compiler.sh)" != c++ ] || clang=($(newest_clang))
  # Some tests start hosts over ssh.
  [ -x /usr/sbin/sshd ] && command -v ssh >/dev/null || optional+=(openssh-server openssh-client)
}

find_missing
if [ ${#missing[@]} -eq 0 ]; then
  [ -z "${optional[*]}${clang[*]}" ] || echo "setup: optional, for faster builds: ${optional[*]} ${clang[*]}"
  exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: missing: ${missing[*]}" >&2
  echo "setup: run: sudo apt-get update && sudo apt-get install -y ${missing[*]} ${optional[*]} ${clang[*]}" >&2
  exit 1
fi
echo "setup: installing ${missing[*]} ${optional[*]} ${clang[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
find_missing  # again, because apt-cache knows clang's packages only now
apt-get install -qy --no-install-recommends "${missing[@]}"
[ ${#optional[@]} -eq 0 ] || apt-get install -qy --no-install-recommends "${optional[@]}" || true
[ ${#clang[@]} -eq 0 ] || apt-get install -qy --no-install-recommends "${clang[@]}" || true
find_missing
if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: still missing after apt-get install: ${missing[*]}" >&2
  exit 1
fi
