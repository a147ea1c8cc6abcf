#!/usr/bin/env bash
# What two GPUs can tell for docs/verified.md, in so many seconds: see docs/offline.md.
#   bash benchmarks/on_gpu/two.sh OUT SECONDS     in the project of an unpacked bundle
# OUT gets results, memory, serial and logs, also when the time runs out.
. benchmarks/on_gpu/steps.sh
cp $here/two.yaml config/experiments.yaml

pack() {
  packed results . results
  packed memory . memory
  packed serial . serial
  packed logs . logs
}

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
# GPU is taken.
CUDA_VISIBLE_DEVICES="${gpus[-1]}" ../engine/bin/python -c "
import time, torch
held = torch.empty(10 << 30, dtype=torch.uint8, device='cuda')
time.sleep(600)" &
taken=$!
step serial 120 snakemake --cores all $(points one--triton two--marlin) --resources gpu=1
kill $taken
mkdir -p serial/experiments
cp -a results/experiments/{one--triton,two--marlin} serial/experiments/

# At once.
rm -r results/experiments/{one--triton,two--marlin}/{server.json,probe.json,points}
step parallel 70 snakemake --cores all $(points one--triton two--marlin)
step report 60 snakemake --cores all results/report.md --config study=pair
