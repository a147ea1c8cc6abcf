"""How much a server's next-token distributions differ from a reference server's.

Both read the same texts, so that one early difference does not make all that follows differ.
"""

from __future__ import annotations

import math
from typing import Any

from bringup.endpoint import Endpoint

TOP = 64
"""Most likely tokens of each position that are compared; the rest of the mass is one more."""

LEAST = 1e-8
"""Probability of a token that is not among the most likely ones."""

TEXTS = [
    f"<|im_start|>user\nWhat is {a}{sign}{b}? Answer with the number only.<|im_end|>\n"
    f"<|im_start|>assistant\n{answer}<|im_end|>"
    for a, b in ((17, 23), (48, 91), (63, 12), (85, 34), (99, 99), (10, 57), (72, 38), (26, 64))
    for sign, answer in (("*", a * b), ("+", a + b), ("-", a - b))
]

Distributions = list[list[dict[int, float]]]
"""For each text, for each position: token id → probability."""


def distributions(endpoint: Endpoint) -> Distributions:
    """Return what a server takes for likely at each position of each text.

    Raises:
        OSError: it refused, or did not answer.
    """
    found = []
    for text in TEXTS:
        request = {
            "text": text,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": TOP,
        }
        reply = endpoint.post("/generate", request, timeout_s=60)
        if reply.status != 200:
            raise OSError(f"/generate: {reply.status} {reply.text[:200]}")
        positions = reply.json["meta_info"]["input_top_logprobs"]
        found.append([_position(each) for each in positions if each])
    return found


def _position(entries: list[list[Any]]) -> dict[int, float]:
    """Return token id → probability of a position; a log-probability that is no number is 0."""
    found = {}
    for logprob, token, *_ in entries:
        known = logprob is not None and math.isfinite(logprob)
        found[int(token)] = math.exp(logprob) if known else 0.0
    return found


def divergence(reference: dict[int, float], other: dict[int, float]) -> float:
    """Return the Kullback-Leibler divergence of ``other`` from ``reference`` in nats.

    Over the reference's tokens, and one more for all others.
    """
    rest = max(0.0, 1.0 - sum(reference.values()))
    others = max(LEAST, 1.0 - sum(other.get(token, LEAST) for token in reference))
    terms = [p * math.log(p / max(LEAST, other.get(t, LEAST))) for t, p in reference.items() if p]
    return max(0.0, sum(terms) + (rest * math.log(rest / others) if rest > LEAST else 0.0))


def compared(reference: Distributions, other: Distributions) -> dict[str, Any]:
    """Return mean, 99th percentile and largest divergence, and how often both say the same."""
    pairs = [
        pair
        for one, two in zip(reference, other, strict=True)
        for pair in zip(one, two, strict=True)
    ]
    found = sorted(divergence(*pair) for pair in pairs)
    same = sum(max(a, key=a.__getitem__) == max(b, key=b.__getitem__) for a, b in pairs)
    return {
        "positions": len(found),
        "kl_mean": sum(found) / len(found),
        "kl_p99": found[int(0.99 * (len(found) - 1))],
        "kl_max": found[-1],
        "top1_agreement": same / len(found),
    }
