"""What a sweep says as a whole, from the points that are there: no new load is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bringup.artifact import Document


def counts(point: Document) -> bool:
    """Return whether a point's figures may be ranked: measured, right, and not void."""
    return bool(
        point["status"] == "ok"
        and not point["void"]
        and point["summary"]["output_tok_s"] is not None
    )


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
    ranked = [point for point in points if counts(point) and point["summary"]["e2e_ms_mean"]]
    if len(ranked) < 3:
        return None
    return max(ranked, key=lambda p: p["summary"]["output_tok_s"] / p["summary"]["e2e_ms_mean"])


def _within(point: Document, limits: Mapping[str, float]) -> bool:
    figures = point["summary"]
    return all(
        figures.get(name) is not None and figures[name] <= limit for name, limit in limits.items()
    )
