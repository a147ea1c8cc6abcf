"""What each request of a load saw: the one shape that every client's output is brought into."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Record:
    """One request. Times are seconds since the start of its run.

    ``scheduled_s`` is when it was due in an open loop, which its times count from; None in a closed
    one.  ``first_token_s`` is when the first text (content or reasoning) came, ``last_token_s``
    when the last one did; None where none came.  ``input_tokens`` and ``output_tokens`` count by
    the server's usage, as do ``cached_tokens``, those of the prompt that it had in its prefix
    cache.  ``first_chunk_tokens`` came at once with the first: they took no time of their own.
    ``arrivals``: ms after sending and tokens by then, for each piece of the answer; None in long
    runs.  ``error`` is None for a request that ended well.  None elsewhere: the client doesn't say.
    """

    sent_s: float
    first_token_s: float | None
    last_token_s: float | None
    input_tokens: int
    output_tokens: int
    first_chunk_tokens: int
    longest_gap_s: float | None
    error: str | None
    scheduled_s: float | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    arrivals: list[list[float]] | None = None

    @property
    def asked_s(self) -> float:
        """When its user asked: when it was due, or when it was sent."""
        return self.sent_s if self.scheduled_s is None else self.scheduled_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.asked_s

    @property
    def e2e_s(self) -> float | None:
        """Time from asking to the last token."""
        return None if self.last_token_s is None else self.last_token_s - self.asked_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first chunk; None where nothing came after it."""
        later = self.output_tokens - self.first_chunk_tokens
        if self.first_token_s is None or self.last_token_s is None or later < 1:
            return None
        return (self.last_token_s - self.first_token_s) / later


@dataclass(frozen=True)
class Client:
    """The load client and how it fared.

    ``cpu_share`` is its share of one core during the run, ``loop_late_ms_*`` how late it was to see
    what came, ``ttft_late_ms`` how late to see first tokens (median).  None: not known.
    """

    name: str
    version: str
    cpu_share: float | None = None
    loop_late_ms_p99: float | None = None
    loop_late_ms_max: float | None = None
    ttft_late_ms: float | None = None


@dataclass(frozen=True)
class Run:
    """One run of a client: its requests in the order of sending.

    ``start_s`` is when it started, on the machine's monotonic clock; ``clock_step_s`` by how much
    the clock on the wall moved against that one until its end.
    """

    client: Client
    records: tuple[Record, ...]
    start_s: float = 0.0
    clock_step_s: float | None = None

    @property
    def end_s(self) -> float:
        """When the last token came, on the same clock; ``start_s`` where none came."""
        ends = [each.last_token_s for each in self.records if each.last_token_s is not None]
        return self.start_s + max(ends, default=0.0)


def read(path: Path) -> Run:
    """Read the records that a load client wrote.

    Raises:
        ValueError: the file is not what a client writes; the message names it.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        client = Client(**content["client"])
        records = tuple(Record(**record) for record in content["records"])
        return Run(client, records, float(content["start_s"]), content["clock_step_s"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a load client's records: {error}") from None
