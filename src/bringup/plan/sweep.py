"""What a plan says of the levels that a sweep asks for.

The plan itself doesn't know the sweep, so that a new level reruns that level only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bringup.artifact import Document


def largest_concurrency(plan: Document, tokens: int) -> int | None:
    """Return how many requests of so many tokens run at once, or None if that is not known.

    Args:
        plan: ``plan.json``.
        tokens: of one request, input and output.
    """
    limits = (_kv_limit(plan, tokens), _state_limit(plan), _flag(plan, _RUNNING))
    return min((limit for limit in limits if limit), default=None)


def warnings(plan: Document, sweep: Mapping[str, Any]) -> list[Document]:
    """Return what is worth knowing before the levels of a sweep are measured.

    Args:
        plan: ``plan.json``.
        sweep: ``{concurrency: [levels], input_tokens, output_tokens}``.
    """
    return [*_above_graphs(plan, sweep), *_above_capacity(plan, sweep)]


def depends_on_text(plan: Document) -> list[str]:
    """Return, in words, what of a server random tokens don't use as texts do.

    Draft tokens are accepted less often, and experts are chosen in other proportions (recipes of
    InferenceX fix the acceptance for that reason).
    """
    found = []
    if any(flag["flag"] == "speculative-algorithm" for flag in plan["flags"]):
        found.append("speculative decoding")
    if "experts" in plan["format"]:
        found.append("the choice of experts")
    return found


_RUNNING = "max-running-requests"


def _above_graphs(plan: Document, sweep: Mapping[str, Any]) -> Iterator[Document]:
    limit = plan["fit"]["graph_max_bs"] if plan["fit"] else None
    above = [level for level in sweep["concurrency"] if limit and level > limit]
    if above:
        message = (
            f"{_levels(above)} above the largest batch with a CUDA graph ({limit}); decoding falls "
            "out of the graphs there: raise cuda-graph-max-bs-decode"
        )
        yield {"class": "level-above-graphs", "message": message}


def _above_capacity(plan: Document, sweep: Mapping[str, Any]) -> Iterator[Document]:
    tokens = sweep["input_tokens"] + sweep["output_tokens"]
    at_once = _kv_limit(plan, tokens)
    above = [level for level in sweep["concurrency"] if at_once is not None and level > at_once]
    if above:
        message = (
            f"{_levels(above)} above what the KV cache holds at once: {at_once} requests of "
            f"{tokens} tokens; the others wait, and their time to first token tells so"
        )
        yield {"class": "level-above-kv-cache", "message": message}
    states = _state_limit(plan)
    above = [level for level in sweep["concurrency"] if states is not None and level > states]
    if above:
        message = (
            f"{_levels(above)} above the {states} requests that the server keeps states for; the "
            "others wait: raise max-running-requests, or mamba-full-memory-ratio where it has one"
        )
        yield {"class": "level-above-states", "message": message}
    running = _flag(plan, _RUNNING)
    above = [level for level in sweep["concurrency"] if running and level > running]
    if above:
        message = f"{_levels(above)} above --{_RUNNING} {running}; the other requests wait"
        yield {"class": "level-above-running-requests", "message": message}


def _kv_limit(plan: Document, tokens: int) -> int | None:
    """Return how many requests the KV caches of all replicas hold."""
    capacity = plan["fit"]["kv_tokens"] if plan["fit"] else _flag(plan, "max-total-tokens")
    return None if capacity is None else capacity * (_flag(plan, "dp-size") or 1) // tokens


def _state_limit(plan: Document) -> int | None:
    """Return how many requests the states that all replicas keep are enough for."""
    requests = plan["fit"]["requests"] if plan["fit"] else None
    return None if requests is None else int(requests) * (_flag(plan, "dp-size") or 1)


def _flag(plan: Document, name: str) -> int | None:
    return next((int(flag["value"]) for flag in plan["flags"] if flag["flag"] == name), None)


def _levels(levels: Sequence[int]) -> str:
    if len(levels) == 1:
        return f"level {levels[0]} is"
    return f"levels {', '.join(map(str, levels))} are"
