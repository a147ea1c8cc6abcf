"""How far one server's predictions are from another's, on fixed texts that both are made to read.

Right answers show only a server that is broken; one that is merely worse predicts the same words
with other probabilities.  Both servers read the same texts (no sampling, so that nothing drifts
apart) and say, at every token, the most probable next ones.

`divergence` is KL(base ‖ other) in nats over the base's most probable tokens and one bucket for
all others.  Grouping outcomes can only lower a KL divergence, so that it is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bringup import stats
from bringup.endpoint import Endpoint, NoReplyError

GENERATE = "/generate"
TOP = 20
"""Most probable tokens that are asked for at each place."""
TAIL = 99.0
"""Of the divergences at all places, the percentile that stands for the worst ones."""
LEAST = 1e-12
"""Probabilities below are taken for this."""


class NoReadingError(ValueError):
    """A server's answer holds no usable log probabilities; one line says why."""


@dataclass(frozen=True)
class Place:
    """One token of a text: which it is, its log probability, and the most probable ones'."""

    token: int
    logprob: float
    top: Mapping[int, float]

    @property
    def likeliest(self) -> int:
        """The most probable token."""
        return max(self.top, key=lambda token: self.top[token])


Reading = list[list[Place]]
"""What a server makes of each text, token by token (the first token of a text has no place)."""


@dataclass(frozen=True)
class Comparison:
    """One server's predictions against another's, over all places of all texts.

    ``mean_kl`` and ``tail_kl`` (the 99th percentile) are in nats, ``top1`` is the share of places
    where both find the same token most probable, ``perplexity`` other's minus base's.
    """

    places: int
    mean_kl: float
    tail_kl: float
    top1: float
    perplexity: float


@dataclass(frozen=True)
class Bound:
    """How far two readings may be apart before they are two models.

    Set by how far readings of one and the same server are apart; on a server that always gives
    the same numbers by the least that is worth telling.
    """

    mean_kl: float
    tail_kl: float
    top1: float

    @classmethod
    def of_noise(cls, noise: Sequence[Comparison]) -> Bound:
        """Return the bound for comparisons of one server with itself, alone and in batches."""
        return cls(
            mean_kl=max(LEAST_MEAN, NOISE_FACTOR * max((c.mean_kl for c in noise), default=0)),
            tail_kl=max(LEAST_TAIL, NOISE_FACTOR * max((c.tail_kl for c in noise), default=0)),
            top1=1 - max(LEAST_TOP1, NOISE_FACTOR * (1 - min((c.top1 for c in noise), default=1))),
        )

    def broken_by(self, seen: Comparison) -> list[str]:
        """Return in words what of ``seen`` is beyond the bound."""
        found = []
        if seen.mean_kl > self.mean_kl:
            found.append(f"mean KL {seen.mean_kl:.2g} nats, noise explains {self.mean_kl:.2g}")
        if seen.tail_kl > self.tail_kl:
            found.append(f"tail KL {seen.tail_kl:.2g} nats, noise explains {self.tail_kl:.2g}")
        if seen.top1 < self.top1:
            found.append(
                f"the same likeliest token at {seen.top1:.1%} of places, noise explains "
                f"{self.top1:.1%}"
            )
        return found


NOISE_FACTOR = 3.0
"""So many times the largest noise seen is still noise: few readings show little of it."""
LEAST_MEAN = 2e-3
LEAST_TAIL = 0.1
LEAST_TOP1 = 0.02
"""What is let pass in any case: bf16 arithmetic in another order moves predictions about so far."""


def read(
    url: str,
    texts: Sequence[str],
    *,
    concurrency: int = 1,
    timeout_s: float = 120,
    api_key: str | None = None,
) -> Reading:
    """Return what a server predicts at each token of each text, ``concurrency`` texts at a time.

    Uses SGLang's ``/generate`` with ``return_logprob``, ``logprob_start_len`` and
    ``top_logprobs_num`` (0.5.13 to 0.5.23), which computes every token anew.

    Raises:
        NoReadingError: the server refused, or its probabilities are no numbers.
        NoReplyError: it did not answer.
    """
    endpoint = Endpoint(url, api_key)
    with ThreadPoolExecutor(max_workers=concurrency) as threads:
        return list(threads.map(lambda text: _read_one(endpoint, text, timeout_s), texts))


def compare(base: Reading, other: Reading) -> Comparison:
    """Return how far ``other`` is from ``base``.

    Raises:
        NoReadingError: they are not readings of the same tokens.
    """
    pairs = list(_pairs(base, other))
    if not pairs:
        raise NoReadingError("nothing was read")
    kl = sorted(divergence(ours, theirs) for ours, theirs in pairs)
    return Comparison(
        places=len(pairs),
        mean_kl=stats.mean(kl),
        tail_kl=stats.percentile(kl, TAIL),
        top1=stats.mean([float(ours.likeliest == theirs.likeliest) for ours, theirs in pairs]),
        perplexity=_perplexity(theirs for _, theirs in pairs)
        - _perplexity(ours for ours, _ in pairs),
    )


def divergence(base: Place, other: Place) -> float:
    """Return KL(base ‖ other) over the tokens that both name and one bucket for the rest, nats."""
    common = base.top.keys() & other.top.keys()
    pairs = [(math.exp(base.top[token]), math.exp(other.top[token])) for token in common]
    rest = (1 - sum(p for p, _ in pairs), 1 - sum(q for _, q in pairs))
    return max(0.0, sum(_term(p, q) for p, q in [*pairs, rest]))


def _term(p: float, q: float) -> float:
    return p * math.log(p / max(q, LEAST)) if p > LEAST else 0.0


def _perplexity(places: Iterator[Place]) -> float:
    return math.exp(min(-stats.mean([place.logprob for place in places]), 50.0))


def _pairs(base: Reading, other: Reading) -> Iterator[tuple[Place, Place]]:
    if len(base) != len(other):
        raise NoReadingError(f"{len(base)} texts against {len(other)}")
    for number, (ours, theirs) in enumerate(zip(base, other, strict=True), 1):
        if [place.token for place in ours] != [place.token for place in theirs]:
            raise NoReadingError(f"text {number} is cut into other tokens: two vocabularies")
        yield from zip(ours, theirs, strict=True)


def _read_one(endpoint: Endpoint, text: str, timeout_s: float) -> list[Place]:
    body = {
        "text": text,
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": TOP,
    }
    reply = endpoint.post(GENERATE, body, timeout_s=timeout_s)
    if reply.status != 200:
        raise NoReadingError(
            f"{GENERATE}: HTTP {reply.status}: {' '.join(reply.text.split())[:300]}"
        )
    try:
        said = reply.json["meta_info"]
        tokens, tops = said["input_token_logprobs"], said["input_top_logprobs"]
        return [_place(*pair) for pair in zip(tokens[1:], tops[1:], strict=True)]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise NoReadingError(f"{GENERATE}: no log probabilities: {error}") from None


def _place(token: Sequence[Any], top: Sequence[Sequence[Any]]) -> Place:
    place = Place(token[1], token[0], {each[1]: each[0] for each in top})
    for value in (place.logprob, *place.top.values()):
        if not isinstance(value, int | float) or math.isnan(value):
            raise NoReadingError(f"a log probability is {value}: the logits were no numbers")
    return place


__all__ = [
    "Bound",
    "Comparison",
    "NoReadingError",
    "NoReplyError",
    "Place",
    "Reading",
    "compare",
    "divergence",
    "read",
]
