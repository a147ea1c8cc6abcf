"""What the figures of a run mean, computed from its records, the same for every client.

Each definition's words are in `MEANING`, for the report's footnote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bringup import stats
from bringup.load.records import Record

MEANING = {
    "ttft_ms": "time from sending a request (in an open loop: from when it was due) to its first "
    "content or reasoning token",
    "tpot_ms": "(time of the last token - time of the first) / (output tokens - tokens of the "
    "first chunk), for each request",
    "e2e_ms": "time from there to its last token",
    "output_tok_s": "output tokens by the server's usage / time from the first send to the last "
    "token; nothing else happens in between",
    "steady_tok_s": "the same while the asked number of requests run: from the first token of the "
    "C-th request to the sending of the last one; each request's tokens are spread evenly; none in "
    "an open loop",
    "user_tok_s": "1000 / median TPOT: what one user sees of it",
}
"""Name of a figure in points → its definition."""

FIGURES = ("ttft_ms", "tpot_ms", "e2e_ms")
"""Figures that are a distribution over requests."""


def figures(records: Sequence[Record], concurrency: int) -> dict[str, Any]:
    """Return the figures of one run at ``concurrency``.

    Requests that failed count as asked and nothing else; a figure without data is None.  Keys:
    ``requests``, ``completed``, ``duration_s``, ``input_tokens``, ``output_tokens``,
    ``output_tok_s``, ``steady_tok_s``, ``user_tok_s``, and the distributions of `FIGURES`, each
    ``{n, mean, p50, p90, p99}`` in milliseconds.
    """
    done = [record for record in records if record.error is None]
    open_loop = any(record.scheduled_s is not None for record in records)
    tokens = sum(record.output_tokens for record in done)
    duration = _duration(records, done)
    tpot = _distribution(record.tpot_s for record in done)
    return {
        "requests": len(records),
        "completed": len(done),
        "duration_s": duration,
        "input_tokens": sum(record.input_tokens for record in done),
        "output_tokens": tokens,
        "output_tok_s": tokens / duration if duration else None,
        "steady_tok_s": None if open_loop else steady_throughput(done, concurrency),
        "user_tok_s": 1000 / tpot["p50"] if tpot["p50"] else None,
        "ttft_ms": _distribution(record.ttft_s for record in done),
        "tpot_ms": tpot,
        "e2e_ms": _distribution(record.e2e_s for record in done),
    }


def steady_throughput(done: Sequence[Record], concurrency: int) -> float | None:
    """Return output tokens per second while ``concurrency`` requests were running.

    None where the run was too short to have such a time, as with fewer than two rounds.
    """
    if len(done) <= concurrency:
        return None
    by_sending = sorted(done, key=lambda record: record.sent_s)
    start, end = by_sending[concurrency - 1].first_token_s, by_sending[-1].sent_s
    if start is None or end <= start:
        return None
    return sum(_tokens_between(record, start, end) for record in done) / (end - start)


def _tokens_between(record: Record, start: float, end: float) -> float:
    first, last = record.first_token_s, record.last_token_s
    if first is None or last is None:
        return 0.0
    at_once = record.first_chunk_tokens if start < first <= end else 0
    if last == first:
        return float(at_once)
    share = max(0.0, min(last, end) - max(first, start)) / (last - first)
    return at_once + share * (record.output_tokens - record.first_chunk_tokens)


def _duration(records: Sequence[Record], done: Sequence[Record]) -> float | None:
    ends = [record.last_token_s for record in done if record.last_token_s is not None]
    return max(ends) - min(record.sent_s for record in records) if ends else None


def _distribution(seconds: Iterable[float | None]) -> dict[str, float | int | None]:
    values = sorted(1000 * value for value in seconds if value is not None)
    if not values:
        return {"n": 0, "mean": None, "p50": None, "p90": None, "p99": None}
    return {
        "n": len(values),
        "mean": stats.mean(values),
        **{f"p{share}": stats.percentile(values, share) for share in (50, 90, 99)},
    }
