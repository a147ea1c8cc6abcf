"""Points as rows under the names that other tools read.

Sources of the names: vLLM's ``vllm bench serve`` result (vllm/benchmarks/serve.py), InferenceX's
aggregate (utils/process_result.py: seconds instead of milliseconds, ``*_intvty``, ``*_per_gpu``)
and SGLang's ``benchmark.serving`` result line (0.5.23).  Where they agree there is one column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.artifact import Document

STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
"""Our name of a statistic → everyone else's, which stands in front of the figure."""

LATENCIES = {
    "ttft_ms": ("ttft", ("ttft_ms",)),
    "tpot_ms": ("tpot", ("tpot_ms",)),
    "e2e_ms": ("e2el", ("e2el_ms", "e2e_latency_ms")),
}
"""Our figure → InferenceX's name (in seconds), and those of vLLM and SGLang (in milliseconds)."""


def row(point: Document, plan: Document, hardware: str | None = None) -> dict[str, Any]:
    """Return one point as a row; figures of a void or wrong point are None.

    Flat fields have the others' names; ours are nested under ``gate``, ``backend`` and
    ``provenance``, which importers of flat rows leave out.

    Args:
        point: ``points/c<concurrency>.json``.
        plan: ``plan.json`` of its experiment.
        hardware: the GPUs' name, or the CPU's.
    """
    counts = _counts(point)
    gate = point.get("gate") or {}
    return {
        **_identity(point, plan, hardware),
        **counts,
        **_throughputs(point, counts, max(1, plan.get("gpus") or 1)),
        **_latencies(point.get("summary") or {}),
        "gate": {
            "passed": gate.get("verdict") == "pass",
            "verdict": gate.get("verdict"),
            "server_boot_id": point.get("boot"),
            "void": point.get("void", []),
        },
        "backend": (plan.get("backend") or {}).get("experts"),
        "provenance": {"study": plan.get("study"), "engine": plan.get("engine")},
    }


def _identity(point: Document, plan: Document, hardware: str | None) -> dict[str, Any]:
    workload = point.get("workload") or {}
    asked = {each["flag"]: each["value"] for each in plan.get("flags") or []}
    return {
        "experiment": point["experiment"],
        "status": point["status"],
        "hw": hardware,
        "model": plan.get("checkpoint"),
        "framework": "sglang",
        "precision": (plan.get("format") or {}).get("experts"),
        "isl": workload.get("input_tokens"),
        "osl": workload.get("output_tokens"),
        "conc": point["concurrency"],
        "max_concurrency": point["concurrency"],
        "request_rate": "inf",
        "tp": _flag(asked, "tp", "tensor-parallel-size", "tp-size"),
        "ep": _flag(asked, "ep", "expert-parallel-size", "ep-size"),
        "dp_attention": bool(asked.get("enable-dp-attention")),
        "is_multinode": False,
    }


def _flag(asked: Mapping[str, Any], *names: str) -> int:
    return next((int(asked[name]) for name in names if name in asked), 1)


def _counts(point: Document) -> dict[str, Any]:
    """Return sums over the repeats that count."""
    valid = [each for each in point.get("repeats", []) if not each["void"]]
    return {
        "num_prompts": sum(each["requests"] for each in valid),
        "completed": sum(each["completed"] for each in valid),
        "failed": sum(each["requests"] - each["completed"] for each in valid),
        "duration": round(sum(each["duration_s"] or 0.0 for each in valid), 4),
        "total_input_tokens": sum(each["input_tokens"] for each in valid),
        "total_output_tokens": sum(each["output_tokens"] for each in valid),
    }


def _throughputs(point: Document, counts: Mapping[str, Any], gpus: int) -> dict[str, float | None]:
    """Return throughputs, in all and for each GPU; the input's follow from its share of tokens."""
    output = (point.get("summary") or {}).get("output_tok_s")
    if not output or not counts["total_output_tokens"]:
        return dict.fromkeys(THROUGHPUTS)
    each = output / counts["total_output_tokens"]
    prompt, requests = each * counts["total_input_tokens"], each * counts["completed"]
    total = output + prompt
    values = (requests, prompt, output, total, total, total / gpus, output / gpus, prompt / gpus)
    return {name: round(value, 4) for name, value in zip(THROUGHPUTS, values, strict=True)}


THROUGHPUTS = (
    "request_throughput",
    "input_throughput",
    "output_throughput",
    "total_token_throughput",
    "total_throughput",
    "tput_per_gpu",
    "output_tput_per_gpu",
    "input_tput_per_gpu",
)


def _latencies(summary: Mapping[str, Any]) -> dict[str, float | None]:
    columns: dict[str, float | None] = {}
    for ours, (short, names) in LATENCIES.items():
        for ending, prefix in STATISTICS.items():
            value = summary.get(f"{ours}_{ending}")
            columns |= {f"{prefix}_{name}": value for name in names}
            columns[f"{prefix}_{short}"] = None if value is None else round(value / 1000, 6)
            if short == "tpot":
                columns[f"{prefix}_intvty"] = round(1000 / value, 4) if value else None
    return columns
