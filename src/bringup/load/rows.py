"""Points as rows under the names that other tools read.

Sources of the names: vLLM's ``vllm bench serve`` result (vllm/benchmarks/serve.py), InferenceX's
aggregate (utils/process_result.py: seconds instead of milliseconds, ``*_intvty``, ``*_per_gpu``)
and SGLang's ``benchmark.serving`` result line (0.5.23).  Where they agree there is one column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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


HARDWARE = {
    "H100": "h100",
    "H200": "h200",
    "B200": "b200",
    "B300": "b300",
    "GB200": "gb200",
    "GB300": "gb300",
    "RTX PRO 6000": "rtx6000pro",
}
"""Words in a GPU's name → InferenceX's key (InferenceX-app, packages/constants/src/gpu-keys.ts);
its importer leaves out rows of any other ``hw``."""

PRECISIONS = {
    "fp8-block": "fp8",
    "fp8-tensor": "fp8",
    "fp8-channel": "fp8",
    "mxfp8": "fp8",
    "w4a16-nvfp4": "nvfp4",
    "int4-group": "int4",
    "awq": "int4",
    "gptq": "int4",
}
"""Our format → the name that InferenceX's importer knows, where it is another."""


@dataclass(frozen=True)
class About:
    """What a row says of its experiment, besides the figures.

    ``hw`` is the machine's GPUs, or its CPU, in words, ``gpus`` how many one server takes,
    ``flags`` the server's (``[{flag, value, …}]``).
    """

    hw: str | None
    model: str | None
    precision: str | None
    flags: Sequence[Mapping[str, Any]]
    gpus: int

    @cached_property
    def asked(self) -> dict[str, Any]:
        """Return the values of the flags, by name."""
        return {str(each.get("flag")): each.get("value") for each in self.flags}


def row(point: Document, about: About) -> dict[str, Any]:
    """Return one point as a flat row under the others' names; what was not measured is None.

    Ours are for the caller to nest, under keys that importers of flat rows leave out.

    Args:
        point: a point, or what a report keeps of it: ``concurrency``, ``workload``, ``summary``,
            and of each repeat its counts and whether it is void.
        about: of its experiment.
    """
    counts = _counts(point)
    return {
        **_identity(point, about),
        **counts,
        **_throughputs(point, counts, max(1, about.gpus)),
        **_latencies(point.get("summary") or {}),
    }


def _identity(point: Document, about: About) -> dict[str, Any]:
    workload = point.get("workload") or {}
    asked = about.asked
    return {
        "hw": _hardware(about.hw),
        "model": about.model,
        "model_id": about.model,
        "framework": "sglang",
        "precision": PRECISIONS.get(about.precision or "", about.precision),
        "spec_decoding": "none" if asked.get("speculative-algorithm") is None else "mtp",
        "disagg": False,
        "isl": workload.get("input_tokens"),
        "osl": workload.get("output_tokens"),
        "random_input_len": workload.get("input_tokens"),
        "random_output_len": workload.get("output_tokens"),
        "conc": point["concurrency"],
        "max_concurrency": point["concurrency"],
        "request_rate": workload.get("rate") or "inf",
        "tp": _flag(asked, "tp", "tensor-parallel-size", "tp-size"),
        "ep": _flag(asked, "ep", "expert-parallel-size", "ep-size"),
        "num_gpus": max(1, about.gpus),
        "dp_attention": bool(asked.get("enable-dp-attention")),
        "is_multinode": False,
    }


def _hardware(words: str | None) -> str | None:
    """Return InferenceX's key for GPUs of one kind, else their words."""
    found = {
        key for name, key in HARDWARE.items() if words and re.search(rf"\b{name}\b", words, re.I)
    }
    return found.pop() if len(found) == 1 else words


def _flag(asked: Mapping[str, Any], *names: str) -> int:
    return next((int(asked[name]) for name in names if asked.get(name) is not None), 1)


def _counts(point: Document) -> dict[str, Any]:
    """Return sums over the repeats that count."""
    valid = [each for each in point.get("repeats", []) if not each["void"]]

    def total(name: str) -> Any:
        return sum(each.get(name) or 0 for each in valid)

    return {
        "num_prompts": total("requests"),
        "completed": total("completed"),
        "failed": total("requests") - total("completed"),
        "duration": round(total("duration_s"), 4),
        "total_input_tokens": total("input_tokens"),
        "total_output_tokens": total("output_tokens"),
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


COLUMNS = tuple(
    row(
        {"concurrency": 1, "repeats": []},
        About(hw=None, model=None, precision=None, flags=(), gpus=1),
    )
)
"""Every field of a row, in order."""
