#!/usr/bin/env bash
# What two GPUs can tell for docs/verified.md, in so many seconds: see docs/offline.md.
#   bash benchmarks/on_gpu/two.sh OUT SECONDS     in the project of an unpacked bundle
# OUT gets results, memory, times and logs, also when the time runs out.
set -uo pipefail
out="$1" end=$((SECONDS + $2))
here=benchmarks/on_gpu
logs="$PWD/logs"
mkdir -p "$out" "$logs"
. ../env.sh
cp $here/two.yaml config/experiments.yaml
cp REVISION "$logs/"

left() { echo $((end - SECONDS - $1 > 1 ? end - SECONDS - $1 : 1)); }
step() { # NAME SECONDS-KEPT-FOR-OTHERS COMMAND…
  local name="$1" kept="$2" began
  began=${EPOCHREALTIME/./}
  shift 2
  timeout -k 5 "$(left "$kept")" "$@" > "$logs/$name.log" 2>&1
  echo "$name: exit $?, $(((${EPOCHREALTIME/./} - began) / 1000)) ms, at $SECONDS s" | tee -a "$logs/steps.txt"
}
pack() {
  for folder in . ../level ../patch; do
    test -d $folder/results && tar -cJf "$out/results-$(basename "$(cd $folder && pwd)").tar.xz" \
      -C $folder --exclude='*.jsonl' results
  done
  tar -cJf "$out/memory.tar.xz" memory
  tar -cJf "$out/logs.tar.xz" logs
}
trap pack EXIT
export XZ_OPT='-T0 -3'
points() { for each in "$@"; do echo "results/experiments/$each/points/c16.json"; done; }

python $here/shapes.py shapes > "$logs/shapes.log"
gpus=($(nvidia-smi --query-gpu=uuid --format=csv,noheader))
weights=$(printf 'results/experiments/%s/weights.json ' one--triton two--marlin both)
plans=$(printf 'results/experiments/%s/plan.json ' fit fit-moe fit-moe-fp8)
step plans 250 snakemake --cores all --keep-going $weights $plans

step memory 260 python $here/memory.py results memory fit fit-moe fit-moe-fp8 --deadline-s 80

# One server over both; it also pays for what only a machine's first start costs.
step both 190 snakemake --cores all $(points both) results/experiments/both/kernels.json

# One after the other on one GPU, the first one's idle server in the way of the second: the other
# GPU is taken.  There, the same by hand.
CUDA_VISIBLE_DEVICES="${gpus[-1]}" ../engine/bin/python -c "
import time, torch
held = torch.empty(10 << 30, dtype=torch.uint8, device='cuda')
time.sleep(600)" &
taken=$!
step serial 120 snakemake --cores all $(points one--triton two--marlin) --resources gpu=1 &
serial=$!
step by-hand 120 python $here/by_hand.py results one--triton "$logs/by-hand.json" --gpu "${gpus[-1]}"
wait $serial
kill $taken
mkdir -p serial/experiments
cp -a results/experiments/{one--triton,two--marlin} serial/experiments/
tar -cJf "$out/serial.tar.xz" --exclude='*.jsonl' serial

# At once.
rm -r results/experiments/{one--triton,two--marlin}/{server.json,probe.json,points}
step parallel 70 snakemake --cores all $(points one--triton two--marlin)
step report 60 snakemake --cores all results/report.md --config study=pair

# From an edit to a new report, in two copies of the project at once.
for name in level patch; do cp -a ../project "../$name"; done
level() {
  cd ../level
  sed -i 's/sweep: {concurrency: \[16\]}  # edited/sweep: {concurrency: [8, 16]}  # edited/' config/experiments.yaml
  PYTHONPATH=$PWD/src step level 4 snakemake --cores all results/report.md --config study=pair
  sed -i 's/backend: \[triton\]}  # edited/backend: [triton, auto]}  # edited/' config/experiments.yaml
  PYTHONPATH=$PWD/src step backend 4 snakemake --cores all results/report.md --config study=pair
}
patched() {
  cd ../patch
  sed -i 's|other: {python: ../engine/bin/python}|other: {python: ../engine/bin/python, patches: [{file: config/patches/announce.patch}]}|' config/experiments.yaml
  PYTHONPATH=$PWD/src step patch 4 snakemake --cores all results/report.md --config study=pair
}
level &
one=$!
patched
wait $one
