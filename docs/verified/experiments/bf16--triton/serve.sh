#!/usr/bin/env bash
# Starts the server of experiment bf16--triton again, on $PORT or 30000.
set -euo pipefail
cd "$(dirname "$0")/../../.."
cache="$(realpath -m "${BRINGUP_CACHE:-.cache}")"
project="$(realpath .)"
unset PYTHONPATH
export SGLANG_JIT_DEEPGEMM_PRECOMPILE=0
unset PYTHONDONTWRITEBYTECODE
exec ../engine/bin/python -m sglang.launch_server \
  --model-path resources/arithmetic-moe/bf16 \
  --host 127.0.0.1 \
  --port "${PORT:-30000}" \
  --attention-backend triton \
  --cuda-graph-max-bs-decode 16 \
  --disable-prefill-cuda-graph \
  --grammar-backend none \
  --max-running-requests 64 \
  --max-total-tokens 65536 \
  --mem-fraction-static 0.5 \
  --moe-runner-backend triton \
  --sampling-backend pytorch \
  --decode-log-interval 10 \
  --enable-metrics
