"""What each request of a load saw: the one shape that every client's output is brought into."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Record:
    """One request. Times are seconds since the first request of its run was sent.

    ``first_token_s`` is when the first text (content or reasoning) came, ``last_token_s`` when the
    last one did; None where none came.  ``output_tokens`` counts by the server's usage.
    ``first_chunk_tokens`` came at once with the first: they took no time of their own.
    ``error`` is None for a request that ended well.
    """

    sent_s: float
    first_token_s: float | None
    last_token_s: float | None
    input_tokens: int
    output_tokens: int
    first_chunk_tokens: int
    longest_gap_s: float | None
    error: str | None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def e2e_s(self) -> float | None:
        """Time from sending to the last token."""
        return None if self.last_token_s is None else self.last_token_s - self.sent_s

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

    ``cpu_share`` is its share of one core during the run, ``loop_late_ms_*`` how late its event
    loop woke up: a token that comes meanwhile is seen that much later.  ``turn_ms_p50`` is how long
    a request that started waited for its next turn, behind those that started with it (median).
    None: not known.
    """

    name: str
    version: str
    cpu_share: float | None = None
    loop_late_ms_p99: float | None = None
    loop_late_ms_max: float | None = None
    turn_ms_p50: float | None = None


@dataclass(frozen=True)
class Run:
    """One run of a client: its requests in the order of sending.

    ``start_s`` is when the first was sent, on the machine's monotonic clock.
    """

    client: Client
    records: tuple[Record, ...]
    start_s: float = 0.0

    @property
    def end_s(self) -> float:
        """When the last token came, on the same clock; ``start_s`` where none came."""
        ends = [each.last_token_s for each in self.records if each.last_token_s is not None]
        return self.start_s + max(ends, default=0.0)


def read(path: Path) -> Run:
    """Read the records that `bringup.load.client` wrote.

    Raises:
        ValueError: the file is not what that client writes; the message names it.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        client = Client(**content["client"])
        records = tuple(Record(**record) for record in content["records"])
        return Run(client, records, float(content["start_s"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a load client's records: {error}") from None
