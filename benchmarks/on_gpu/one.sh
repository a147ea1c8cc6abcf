#!/usr/bin/env bash
# What one GPU can tell for docs/verified.md, in so many seconds: see docs/offline.md.
#   bash benchmarks/on_gpu/one.sh OUT SECONDS     in the project of an unpacked bundle
# OUT gets results, rows, kernels that were built and logs, also when the time runs out.
set -uo pipefail
out="$1" end=$((SECONDS + $2))
here=benchmarks/on_gpu
logs="$PWD/logs"
mkdir -p "$out" "$logs"
. ../env.sh
cp $here/one.yaml config/experiments.yaml
cp REVISION "$logs/"

left() { echo $((end - SECONDS - $1 > 1 ? end - SECONDS - $1 : 1)); }
step() { # NAME SECONDS-KEPT-FOR-OTHERS COMMAND…
  local name="$1" kept="$2" began=$SECONDS
  shift 2
  timeout -k 5 "$(left "$kept")" "$@" > "$logs/$name.log" 2>&1
  echo "$name: exit $?, $((SECONDS - began)) s, at $SECONDS s" | tee -a "$logs/steps.txt"
}
pack() {
  kill $(jobs -p) 2> /dev/null
  rm -rf results/experiments/*/logs/*.jsonl
  tar -cJf "$out/results.tar.xz" --exclude=.snakemake results &
  tar -cJf "$out/rows.tar.xz" rows &
  tar -cJf "$out/kernels.tar.xz" -C .. --exclude='*.o' --exclude='*.cu' --exclude=cubin kernels/tvm-ffi kernels/triton &
  tar -cJf "$out/logs.tar.xz" logs
  wait
}
trap pack EXIT
export XZ_OPT='-T0 -3'

nvidia-smi --query-gpu=timestamp,power.draw,clocks.sm,clocks_event_reasons.active,memory.used,utilization.gpu \
  --format=csv -lms 500 > "$logs/nvidia-smi.csv" 2>&1 &

rows=$(python -c "
from bringup.config import load
from bringup import routing
from pathlib import Path
whole = load(Path('config/experiments.yaml'), made=['resources/arithmetic-moe/' + f for f in ('fp8', 'int4', 'mixed', 'mxfp4', 'nvfp4')], backends=lambda _: routing.backends('sm90'))
print(*(f'results/experiments/{name}/weights.json' for name in whole.experiments))")
step plans 250 snakemake --cores all --keep-going $rows
step corrupt 250 ../engine/bin/python $here/corrupt.py resources/arithmetic-moe corrupted &

timed_s=${TIMED_S:-195}  # kept for what is timed
step rows $timed_s python $here/rows.py results rows --order $here/order.yaml \
  --side-by-side 8 --deadline-s "$(left $((timed_s + 5)))" \
  --keep-traces rows-fp8-linear--deep_gemm rows-int4--cutlass rows-mixed--auto
step timed 10 snakemake --cores all --keep-going results/report.md --config study=timed
test -f results/report.md || step report 2 python -m bringup.report
