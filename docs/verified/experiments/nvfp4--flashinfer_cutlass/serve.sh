#!/usr/bin/env bash
printf '%s\n' 'no server to start: plan refused: flashinfer_cutlass for nvfp4 experts on sm90: after 35 to 40 s: "ValueError: Current platform does not support NVFP4 quantization with the selected MoE backend. Please use Blackwell and above, or use moe_runner_backend=marlin on SM80+."' >&2
exit 1
