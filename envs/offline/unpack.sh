#!/usr/bin/env bash
# Unpacks a bundle on the machine without network: see docs/offline.md.
#   bash unpack.sh WHERE [PYTHON]
# PYTHON (python3) has torch; it is left as it is. Below WHERE come to be: engine/bin/python, the
# interpreter for `engines: {…: {python: …}}`; workflow/bin/python and workflow/bin/snakemake;
# project/, this workflow; env.sh, to be sourced before snakemake; kernels/. Archives can come in
# several goes: what is unpacked already is left alone.
set -euo pipefail
from="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
mkdir -p "$1"/{packages,kernels,cache} && where="$(cd "$1" && pwd)"
python="${2:-python3}"
packages="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

cat > "$where/env.sh" <<END
# Byte code and kernels that are built while serving are kept, and nothing is looked for outside.
unset PYTHONDONTWRITEBYTECODE PYTHONHOME
export PATH="$where/workflow/bin:\$PATH" PYTHONPATH="$where/project/src"
export PYTHONPYCACHEPREFIX="$where/cache/pyc" BRINGUP_CACHE="$where/cache/bringup"
export TVM_FFI_CACHE_DIR="$where/kernels/tvm-ffi" TRITON_CACHE_DIR="$where/kernels/triton"
export SGLANG_DG_CACHE_DIR="$where/kernels/deep_gemm" FLASHINFER_WORKSPACE_BASE="$where/kernels"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
END
. "$where/env.sh"

# The first start of a server reads thousands of files; compiled ones are read three times as fast.
compiled() { PYTHONPATH='' "$python" -m compileall -q -j 0 "$@" > /dev/null 2>&1 || true; }

# An environment without packages of its own: the bundle's come first, then those of PYTHON.
environment() {
  tar -xJf "$from/$1.tar.xz" -C "$where/packages"
  "$python" -m venv --without-pip "$where/$1"
  local own
  own="$("$where/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  printf '%s\n' "$where/packages/$1" "$packages" > "$own/bundle.pth"
  compiled "$where/packages/$1"
}

take() {
  case "$1" in
    engine)
      environment engine
      compiled "$packages/torch" "$packages/triton"
      ;;
    workflow)
      environment workflow
      printf '%s\n' "#!$where/workflow/bin/python" 'import sys' 'from snakemake.cli import main' \
        'sys.exit(main())' > "$where/workflow/bin/snakemake"
      chmod +x "$where/workflow/bin/snakemake"
      ;;
    *) tar -xJf "$from/$1.tar.xz" -C "$where" ;;
  esac
  touch "$where/.$1"
}

for archive in "$from"/*.tar.xz; do
  name="$(basename "$archive" .tar.xz)"
  test -e "$where/.$name" || take "$name" &
done
wait
