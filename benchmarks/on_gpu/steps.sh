# What the scripts for GPUs share; to be sourced with OUT SECONDS.  Each step has its own log, and
# the seconds kept for those after it; OUT gets everything that is there when the time is over.
set -uo pipefail
out="$1" end=$((SECONDS + $2))
here=benchmarks/on_gpu
logs="$PWD/logs"
mkdir -p "$out" "$logs"
. ../env.sh
cp REVISION "$logs/"
date -u +%F > "$logs/DATE"

left() { echo $((end - SECONDS - $1 > 1 ? end - SECONDS - $1 : 1)); }
step() { # NAME SECONDS-KEPT-FOR-OTHERS COMMAND…
  local name="$1" kept="$2" began code
  began=${EPOCHREALTIME/./}
  shift 2
  timeout -k 5 "$(left "$kept")" "$@" > "$logs/$name.log" 2>&1
  code=$?
  echo "$name: exit $code, $(((${EPOCHREALTIME/./} - began) / 1000)) ms, at $SECONDS s" | tee -a "$logs/steps.txt"
  return $code
}
packed() { # NAME FOLDER-TO-PACK-FROM WHAT… (what is not there yet is left out)
  local name="$1" from="$2" found=()
  shift 2
  for each in "$@"; do test -e "$from/$each" && found+=("$each"); done
  test ${#found[@]} = 0 || tar -cJf "$out/$name.tar.xz" -C "$from" --exclude=.snakemake --exclude='*.jsonl' "${found[@]}"
}
export XZ_OPT='-T0 -3'
trap 'kill $(jobs -p) 2> /dev/null; pack' EXIT # each script's own
