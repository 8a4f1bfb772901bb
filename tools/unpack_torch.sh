#!/usr/bin/env bash
# Puts the headers and libraries of a wheel of torch under a folder, where CMake finds them (-DZEROSHARD_TORCH_ROOT); no
# Python can import them. The wheel is downloaded without what it depends on, and deleted afterwards.
#   tools/unpack_torch.sh VERSION FOLDER [OPTION OF pip download...]      2.15 or 2.15.0; FOLDER gets torch/
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 folder=$2
shift 2
[ ! -e "$folder/torch/.complete" ] || exit 0
mkdir -p "$folder"
if ! compgen -G "$folder/torch-$version*.whl" >/dev/null; then
  echo "unpack_torch: downloading torch $version (200 to 600 MB)"
  rm -rf "$folder/download"
  .venv/bin/python -m pip download -q --disable-pip-version-check "torch==$version.*" --no-deps --only-binary=:all: \
    "$@" -d "$folder/download" || { rm -rf "$folder/download"; rmdir --ignore-fail-on-non-empty "$folder"; echo "unpack_torch: there is no wheel of torch $version to download" >&2; exit 1; }
  mv "$folder"/download/*.whl "$folder"  # whole
  rmdir "$folder/download"
fi
rm -rf "${folder:?}/torch"
.venv/bin/python - "$folder"/torch-"$version"*.whl "$folder" <<'PY'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    parts = ("torch/include/", "torch/lib/", "torch/version.py")
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.startswith(parts)])
PY
rm -f "$folder"/torch-"$version"*.whl
touch "$folder/torch/.complete"
