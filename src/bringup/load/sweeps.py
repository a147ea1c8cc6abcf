"""What a sweep says as a whole, from the points that are there: no new load is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.artifact import Document
from bringup.load import summary
from bringup.probes.gate import SEVERITY

WORST = ("failed", "wrong", "refused", "skipped", "ok")
"""Statuses, in the order in which one of several boots speaks for the point."""

PHASES = ("before", "during", "after")


def joined(boots: Mapping[int, Document]) -> Document:
    """Return one point from the documents of one level, one for each boot that measured it.

    The repeats of all boots stand side by side, each with its boot's id, and the summary is over
    all of them.  Status, reason and gate are the worst boot's: what fails on its second start has
    not passed.  Its reason and what voids a repeat say which boot they speak of.

    Args:
        boots: number of the boot → its document, of schema ``point/1``.
    """
    if len(boots) == 1:
        return next(iter(boots.values()))
    in_order = [boots[number] for number in sorted(boots)]
    repeats = [each for document in in_order for each in document.get("repeats", [])]
    worst = min(sorted(boots), key=lambda number: WORST.index(boots[number]["status"]))
    point = {**in_order[0], "status": boots[worst]["status"], "reason": _reason(boots, worst)}
    if gates := [document["gate"] for document in in_order if "gate" in document]:
        point["gate"] = _gate(gates)
    return point | {
        "repeats": repeats,
        "summary": summary.of(repeats),
        "server": summary.served(repeats),
        "void": [
            f"boot {number}, {why}"
            for number in sorted(boots)
            for why in boots[number].get("void", [])
        ],
    }


def _reason(boots: Mapping[int, Document], worst: int) -> Document | None:
    reason = boots[worst]["reason"]
    return reason and {**reason, "message": f"boot {worst}: {reason['message']}"}


def _gate(gates: Sequence[Document]) -> Document:
    """Return the gate over all boots: the worst verdict, and each phase with what it counted."""
    phases = {
        name: _phase([gate[name] for gate in gates if name in gate])
        for name in PHASES
        if any(name in gate for gate in gates)
    }
    return {"verdict": max((gate["verdict"] for gate in gates), key=SEVERITY.index), **phases}


def _phase(phases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    worst = max(phases, key=lambda phase: SEVERITY.index(phase["verdict"]))
    return {
        "verdict": worst["verdict"],
        "asked": sum(phase["asked"] for phase in phases),
        "right": sum(phase["right"] for phase in phases),
        "message": worst["message"],
        "not_right": [item for phase in phases for item in phase["not_right"]],
    }


def counts(point: Document) -> bool:
    """Return whether a point's figures may be ranked: right, and some repeat is not void."""
    return bool(point["status"] == "ok" and point["summary"]["output_tok_s"] is not None)


def best_under(points: Sequence[Document], limits: Mapping[str, float]) -> Document | None:
    """Return the point with the most throughput whose figures stay within ``limits``.

    Args:
        points: points of one experiment.
        limits: name in a point's summary (``ttft_ms_p99``, ``tpot_ms_p99``, …) → largest value.

    Returns:
        The point, None where none that counts stays within the limits.

    Raises:
        ValueError: no point knows a figure of that name.
    """
    ranked = [point for point in points if counts(point)]
    for name in limits:
        if ranked and not any(name in point["summary"] for point in ranked):
            known = ", ".join(sorted(ranked[0]["summary"]))
            raise ValueError(f"limit on {name!r}: no such figure; there are: {known}")
    good = [point for point in ranked if _within(point, limits)]
    return max(good, key=lambda point: point["summary"]["output_tok_s"], default=None)


def knee(points: Sequence[Document]) -> Document | None:
    """Return the point where throughput per latency is highest: beyond it latency grows faster.

    This is the maximum of Kleinrock's power, throughput / mean response time (L. Kleinrock, "Power
    and deterministic rules of thumb for probabilistic problems in computer communications", 1979).
    None with fewer than three points that count: a knee needs two sides.
    """
    ranked = [point for point in points if counts(point) and point["summary"].get("e2e_ms_mean")]
    if len(ranked) < 3:
        return None
    return max(ranked, key=lambda p: p["summary"]["output_tok_s"] / p["summary"]["e2e_ms_mean"])


def _within(point: Document, limits: Mapping[str, float]) -> bool:
    figures = point["summary"]
    return all(
        figures.get(name) is not None and figures[name] <= limit for name, limit in limits.items()
    )
