#!/usr/bin/env bash
# What one GPU can tell for docs/verified.md, in so many seconds: see docs/offline.md.
#   bash benchmarks/on_gpu/one.sh OUT SECONDS [PART…]     in the project of an unpacked bundle
# PARTs, done as they are named: `rows` (forced, side by side; ROWS names them, else order.yaml),
# `timed`, `overheads`, and `edits` after it; without any, these four.  Another call goes on where one
# stopped.  OUT gets what there is, also when the time runs out.
. benchmarks/on_gpu/steps.sh
parts=("${@:3}")
test ${#parts[@]} != 0 || parts=(rows timed overheads edits)
declare -A takes=([rows]=0 [timed]=195 [overheads]=315 [edits]=165) # seconds; rows take what the others leave
cp $here/one.yaml config/experiments.yaml

pack() {
  packed results . results &
  packed rows . rows &
  packed overheads .. overheads/results overheads/by-hand.json &
  packed kernels .. kernels/tvm-ffi kernels/triton &
  packed logs . logs
  wait
}

nvidia-smi --query-gpu=timestamp,power.draw,clocks.sm,clocks_event_reasons.active,memory.used,utilization.gpu \
  --format=csv -lms 500 >> "$logs/nvidia-smi.csv" 2>&1 &

rows() {
  test -d corrupted || step corrupt "$1" ../engine/bin/python $here/corrupt.py resources/arithmetic-moe corrupted
  step rows "$1" python $here/rows.py results rows --order $here/order.yaml --rows ${ROWS-} \
    --side-by-side 8 --deadline-s "$(left $(($1 + 5)))" \
    --keep-traces rows-fp8-linear--deep_gemm rows-int4--cutlass rows-mixed--auto
}

timed() {
  step timed "$1" snakemake --cores all --keep-going results/report.md --config study=timed
  test -f results/report.md || step report 2 python -m bringup.report
}

# The workflow against the same by hand; in a copy of the project.
overheads() {
  test -d ../overheads || cp -a ../project ../overheads
  cp $here/overheads.yaml ../overheads/config/experiments.yaml
  local whole=results/experiments/whole--triton
  beside base $(($1 + 190)) "${report[@]}" # it also pays for what only a machine's first start costs
  beside ready $(($1 + 185)) snakemake --cores all $whole/weights.json
  beside workflow $(($1 + 90)) snakemake --cores all $whole/points/c{1,4,16}.json
  beside by-hand "$1" python $here/by_hand.py results whole--triton by-hand.json \
    --gpu "$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -1)"
  cp ../overheads/.snakemake/times.json "$logs/"
}

# From edits to new reports, in the same copy: the patch first, while least has to be measured again.
edits() {
  edited patch $(($1 + 95)) 'engine/bin/python}' 'engine/bin/python, patches: [{file: config/patches/announce.patch}]}'
  edited level $(($1 + 52)) 'concurrency: [16]}' 'concurrency: [8, 16]}'
  edited backend "$1" 'backend: [triton]}' 'backend: [triton, auto]}'
}
report=(snakemake --cores all results/report.md --config study=edits)
beside() { # a step in the copy
  cd ../overheads || return
  PYTHONPATH="$PWD/src" step "$@"
  cd ../project || return
}
edited() { # NAME SECONDS-KEPT-FOR-OTHERS FROM TO (of the line that is marked for it)
  sed -i "s|${3//[/\\[}  # edited|$4  # edited|" ../overheads/config/experiments.yaml
  beside "$1" "$2" "${report[@]}"
}

step plans 60 snakemake --cores all --keep-going $(python -c "
from pathlib import Path
from bringup import routing
from bringup.config import load
made = ['resources/arithmetic-moe/' + form for form in ('fp8', 'int4', 'mixed', 'mxfp4', 'nvfp4')]
whole = load(Path('config/experiments.yaml'), made=made, backends=lambda _: routing.backends('sm90'))
print(*(f'results/experiments/{name}/weights.json' for name in whole.experiments))")
for place in "${!parts[@]}"; do
  kept=10
  for later in "${parts[@]:place+1}"; do kept=$((kept + takes[$later])); done
  "${parts[place]}" $kept
done
