"""What is sent: how many requests of which lengths, from which seed, by which command line."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass

from bringup.load.client import API_KEY, TIMEOUT

ROUNDS = 10
"""Requests for each place in the batch, at least.  The first and the last round run in a batch that
fills or empties; of ten rounds they are a fifth (InferenceX sends ten, too)."""

WARM_UP_ROUNDS = 2

TOKEN_S = 2.0
"""A request may take this long for each output token, and the same for its prompt."""

LEAST_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Workload:
    """A closed loop: ``concurrency`` requests run at once, a new one starts where one ends.

    Every prompt has ``input_tokens`` random tokens and every answer ``output_tokens``, whatever the
    model says.  A run lasts for `ROUNDS` rounds and at least ``min_seconds``.
    """

    concurrency: int
    input_tokens: int
    output_tokens: int
    min_seconds: float

    @property
    def timeout_s(self) -> float:
        """Seconds after which one request is given up."""
        return max(LEAST_TIMEOUT_S, TOKEN_S * (self.output_tokens + 1))

    def requests(self, per_second: float | None) -> int:
        """Return how many requests a run needs, at ``per_second`` of them (None: not known)."""
        for_time = math.ceil((per_second or 0) * self.min_seconds)
        return max(ROUNDS * self.concurrency, for_time)

    def seed(self, repeat: int | str, boot: int = 1) -> int:
        """Return the seed of a repeat: another for each, the same for every experiment."""
        text = f"{self.concurrency} {self.input_tokens} {self.output_tokens} {repeat}"
        if boot > 1:
            text += f" boot {boot}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def arguments(
    workload: Workload,
    *,
    url: str,
    model: str,
    requests: int,
    seed: int,
    output: str,
    api_key: str | None = None,
) -> list[str]:
    """Return the arguments of ``sglang.bench_serving`` for one run (names of 0.5.13 to 0.5.23).

    ``model`` is the snapshot's folder, whose tokenizer is used.  Lengths are exact:
    ``--random-range-ratio 1``, and the prompt is sent as token ids.  Special tokens are shown: an
    answer to random tokens may consist of nothing else, and the client sees tokens by their text.
    The client's own warm-up and its progress bar are off.
    """
    sampling = {
        "temperature": 0.0,
        "max_new_tokens": workload.output_tokens,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    return [
        *("--backend", "sglang", "--base-url", url, "--model", model, "--tokenizer", model),
        *("--dataset-name", "random-ids", "--tokenize-prompt"),
        *("--random-input-len", str(workload.input_tokens)),
        *("--random-output-len", str(workload.output_tokens), "--random-range-ratio", "1"),
        *("--num-prompts", str(requests), "--max-concurrency", str(workload.concurrency)),
        *("--extra-request-body", json.dumps({"sampling_params": sampling})),
        *("--seed", str(seed), "--warmup-requests", "0", "--disable-tqdm"),
        *("--output-file", output, TIMEOUT, f"{workload.timeout_s:g}"),
        *((API_KEY, api_key) if api_key else ()),
    ]
