"""What is sent: how many requests of which lengths, when, and from which seed."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from dataclasses import asdict, dataclass
from typing import Any

from bringup.load.prompts import Prompts

ROUNDS = 10
"""Requests for each place in the batch, at least.  The first and the last round run in a batch that
fills or empties; of ten rounds they are a fifth (InferenceX sends ten, too)."""

WARM_UP_ROUNDS = 2

WARM_UP_S = 5.0
"""How long an open loop is warmed up, at least."""

TOKEN_S = 2.0
"""A request may take this long for each output token, and the same for its prompt."""

LEAST_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Workload:
    """How a server is loaded.

    A closed loop, without ``rate``: ``concurrency`` requests run at once, a new one starts where
    one ends.  An open loop: ``rate`` requests a second are sent at the times of a Poisson process,
    whether the server keeps up or not; each is timed from when it was due, and waits for its turn
    only where ``concurrency`` are running.

    Prompts are ``input_tokens`` random tokens each, or taken from ``prompts``.  Every answer has
    ``output_tokens``, whatever the model says.  A run lasts for `ROUNDS` rounds and at least
    ``min_seconds``.
    """

    concurrency: int
    input_tokens: int
    output_tokens: int
    min_seconds: float
    rate: float | None = None
    prompts: Prompts | None = None

    @property
    def timeout_s(self) -> float:
        """Seconds after which one request is given up."""
        return max(LEAST_TIMEOUT_S, TOKEN_S * (self.output_tokens + 1))

    def requests(self, per_second: float | None) -> int:
        """Return how many requests a run needs, at ``per_second`` of them (None: not known)."""
        if self.rate:
            return max(ROUNDS, math.ceil(self.rate * self.min_seconds))
        for_time = math.ceil((per_second or 0) * self.min_seconds)
        return max(ROUNDS * self.concurrency, for_time)

    def warm_up_requests(self) -> int:
        """Return how many requests are sent before anything is measured."""
        if self.rate:
            return max(ROUNDS, math.ceil(self.rate * WARM_UP_S))
        return WARM_UP_ROUNDS * self.concurrency

    def seed(self, repeat: int | str, boot: int = 1) -> int:
        """Return the seed of a repeat: another for each, the same for every experiment."""
        text = f"{self.concurrency} {self.input_tokens} {self.output_tokens} {repeat}"
        if boot > 1:
            text += f" boot {boot}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def schedule_s(self, requests: int, seed: int) -> list[float] | None:
        """Return when each request is due in an open loop, in seconds; None in a closed one."""
        if not self.rate:
            return None
        chance = random.Random(seed)
        gaps = [chance.expovariate(self.rate) for _ in range(requests - 1)]
        return [0.0, *itertools.accumulate(gaps)][:requests]

    def document(self) -> dict[str, Any]:
        """Return the workload as points store it; ``input_tokens`` is None for texts."""
        fields = asdict(self)
        fields["prompts"] = self.prompts.document() if self.prompts else "random"
        return fields | {"input_tokens": None if self.prompts else self.input_tokens}


@dataclass(frozen=True)
class Job:
    """One run of a load client: ``requests`` of a workload to a server.

    ``model`` is the snapshot's folder, whose tokenizer's vocabulary random prompts are drawn from.
    """

    workload: Workload
    url: str
    model: str
    requests: int
    seed: int
    api_key: str | None = None
