"""A point's figures, from its repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup import stats
from bringup.load import definitions


def of(repeats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a point's figures over its repeats (`stats.typical`), those that are void left out.

    ``spread`` is (largest - smallest) / mean of the throughput; everything is None where no repeat
    counts.
    """
    valid = [each for each in repeats if not each["void"] and each["output_tok_s"]]

    def middle(values: Sequence[float | None]) -> float | None:
        known = [
            stats.Measured(each["boot"], value)
            for each, value in zip(valid, values, strict=True)
            if value is not None
        ]
        return round(stats.typical(known), 3) if known else None

    throughputs = [each["output_tok_s"] for each in valid]
    return {
        "n_repeats": len(valid),
        **{
            name: middle([each[name] for each in valid])
            for name in ("output_tok_s", "steady_tok_s", "user_tok_s")
        },
        **{
            f"{name}_{share}": middle([each[name][share] for each in valid])
            for name in definitions.FIGURES
            for share in ("mean", "p50", "p90", "p99")
        },
        "spread": round(stats.spread(throughputs), 4) if throughputs else None,
        "joules_per_output_token": middle(
            [each["gpu"] and each["gpu"]["joules_per_output_token"] for each in valid]
        ),
    }


def served(repeats: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what the server's log shows of all repeats together."""
    seen = [each["server"] for each in repeats if each["server"]]
    if not seen:
        return None
    speeds = [each["decode_tok_s"] for each in seen if each["decode_tok_s"]]
    accepted = [length for each in repeats if (length := accept_len(each))]
    graphs = {each["graph"] for each in seen}
    return {
        "decode_tok_s": stats.median(speeds) if speeds else None,
        "graph": graphs.pop() if len(graphs) == 1 else "some",
        "running_max": max((s["running_max"] for s in seen if s["running_max"]), default=None),
        "accept_len": stats.median(accepted) if accepted else None,
    }


def accept_len(repeat: Mapping[str, Any]) -> float | None:
    """Return the output tokens of each step of speculative decoding in one repeat.

    From how far the server's counters moved meanwhile (tokens / verifications, as SGLang 0.5.23
    reckons it for a request, managers/tokenizer_manager.py), else from the lines of its log in that
    window; its own figure is over the server's whole life.  None without speculation.
    """
    counters = repeat.get("counters") or {}
    if counters.get("verify_calls"):
        return round(float(counters["generation_tokens"] / counters["verify_calls"]), 3)
    length: float | None = (repeat.get("server") or {}).get("accept_len")
    return length
