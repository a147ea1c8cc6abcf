"""Read a server's log, whatever its size, encoding or damage, in bounded memory.

A line of SGLang is ``[2026-06-17 20:48:01 DP0 TP1] message``: no level, and every rank repeats it
(``utils/common.py`` of 0.5.12 to 0.5.23).  Progress bars write without a newline, so that a header
can stand in the middle of a physical line: such lines are cut in front of it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

BLOCK = 1 << 20
"""Bytes read at a time."""

LONGEST_LINE = 1 << 18
"""Characters kept of one line; what follows them in that line is dropped.

The longest line that matters, the echo of all server arguments, has about 20,000.
"""

HEADER = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?(?P<ranks>(?: [A-Z][A-Z_]*\d+)*)\] ?"
)


S = TypeVar("S")


class Line(NamedTuple):
    """One line: its text without the header, and what the header said."""

    number: int
    """Counted from 1 at the place where reading began."""
    time: str | None
    ranks: str
    """``DP0 TP1``; empty for one process, and for lines without a header (tracebacks)."""
    text: str
    complete: bool
    """Whether it ended in a newline: the last line of a log that was cut need not."""

    @property
    def raw(self) -> str:
        """The line as it stood in the log."""
        if self.time is None:
            return self.text
        return f"[{' '.join(filter(None, (self.time, self.ranks)))}] {self.text}"


def lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[Line]:
    """Yield the lines between two byte offsets of ``path``, in the order written.

    UTF-8 is expected; a byte order mark chooses UTF-16, and bytes that fit no encoding are read
    as replacement characters.  Carriage returns end a line, as a terminal would show it.

    Raises:
        OSError: the file cannot be read.
    """
    number = 0
    for text, complete in _physical_lines(path, start, end):
        for piece, last in _at_headers(text):
            number += 1
            header = HEADER.match(piece) if piece.startswith("[") else None
            if header is None:
                yield Line(number, None, "", piece, complete or not last)
            else:
                time, ranks = header["time"], header["ranks"].strip()
                yield Line(number, time, ranks, piece[header.end() :], complete or not last)


def _at_headers(text: str) -> Iterator[tuple[str, bool]]:
    """Cut a physical line in front of every header in it; the second value marks the last piece."""
    if text.find("[2", 1) < 0:
        yield text, True
        return
    cuts = [match.start() for match in HEADER.finditer(text) if match.start() > 0]
    bounds = [0, *cuts, len(text)]
    for begin, stop in pairwise(bounds):
        yield text[begin:stop], stop == len(text)


def _physical_lines(path: Path, start: int, end: int | None) -> Iterator[tuple[str, bool]]:
    pending = ""
    overlong = False
    for chunk in _decoded(path, start, end):
        parts = chunk.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for part in parts[:-1]:
            if not overlong:
                yield (pending + part)[:LONGEST_LINE], True
            pending, overlong = "", False
        if not overlong:
            pending += parts[-1]
        if len(pending) > LONGEST_LINE:
            yield pending[:LONGEST_LINE], True
            pending, overlong = "", True
    if pending:
        yield pending, False


def _decoded(path: Path, start: int, end: int | None) -> Iterator[str]:
    """Yield the text of ``path`` in blocks; none ends between a carriage return and its newline."""
    with path.open("rb") as stream:
        encoding, mark = _encoding(stream.read(4))
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        start = max(start, mark)
        stream.seek(start)
        left = None if end is None else max(0, end - start)
        held = ""
        while block := stream.read(BLOCK if left is None else min(BLOCK, left)):
            left = None if left is None else left - len(block)
            text = held + decoder.decode(block)
            held = "\r" if text.endswith("\r") else ""
            yield text[: len(text) - len(held)]
        yield held + decoder.decode(b"", final=True)


def _encoding(head: bytes) -> tuple[str, int]:
    """Return the encoding that a file's first bytes mark, and how long that mark is."""
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding, len(mark)
    return "utf-8", 0


_MARKS = {
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    codecs.BOM_UTF8: "utf-8",
}


class Repeats:
    """Tells the lines of a flood from those that say something new, in bounded memory.

    Lines are of one kind if they begin alike, numbers aside.
    """

    SAME = 40
    """Characters that decide the kind."""

    MOST_KINDS = 50_000

    def __init__(self, most: int) -> None:
        """Let ``most`` lines of each kind pass."""
        self._most = most
        self._seen: dict[str, int] = {}

    def __call__(self, line: Line) -> bool:
        """Count ``line``, and return whether it is one more than wanted of its kind."""
        kind = line.text[: 2 * self.SAME].translate(_NO_DIGITS)[: self.SAME]
        count = self._seen.get(kind, 0) + 1
        if len(self._seen) >= self.MOST_KINDS:
            self._seen.clear()
        self._seen[kind] = count
        return count > self._most


_NO_DIGITS = {ord(digit): None for digit in "0123456789"}

_NUMBER = r"(-?\d+(?:\.\d+)?|nan|inf)"


@dataclass(frozen=True, slots=True)
class DecodeLine:
    """One ``Decode batch`` line: the state of one scheduler after some decode steps."""

    time: str | None
    ranks: str
    running: int
    """Requests in the batch."""
    tokens: int | None
    """Tokens in the KV cache (of the full-attention layers, in a hybrid model)."""
    queue: int
    """Requests that wait."""
    gen_tok_s: float
    """Output tokens per second since the line before, idle time included."""
    graph: bool | None
    """Whether the step ran in a CUDA (or CPU) graph; None where the line does not say."""
    accept_len: float | None
    """Mean tokens per step of speculative decoding."""


@dataclass(frozen=True, slots=True)
class PrefillLine:
    """One ``Prefill batch`` line."""

    time: str | None
    ranks: str
    sequences: int
    new_tokens: int
    cached_tokens: int
    """Prompt tokens taken from the prefix cache: above 0 in a sweep, the TTFT is flattered."""
    queue: int
    input_tok_s: float | None


def decode_lines(
    path: Path, start_offset: int = 0, end_offset: int | None = None
) -> list[DecodeLine]:
    """Return the decode statistics that the server logged between two byte offsets.

    Fields are found by name, not by place: they moved and grew between 0.5.12 and 0.5.23
    (``#token`` against ``#full token``, ``accept len``, ``cpu graph``, trailing fields after
    ``#queue-req``).  A line that is cut off is left out.  Of the ranks that share a batch (tensor,
    pipeline and expert parallel), the one that is seen first speaks; data-parallel ranks each have
    their own.
    """
    return list(_statistics(lines(path, start_offset, end_offset), "Decode batch", _decode))


def prefill_lines(
    path: Path, start_offset: int = 0, end_offset: int | None = None
) -> list[PrefillLine]:
    """Return the prefill statistics logged between two byte offsets; see `decode_lines`."""
    return list(_statistics(lines(path, start_offset, end_offset), "Prefill batch", _prefill))


def _statistics(
    found: Iterable[Line], beginning: str, parsed: Callable[[Line], S | None]
) -> Iterator[S]:
    """Yield what whole lines of one beginning say, each data-parallel group through one rank."""
    speakers: dict[str, str] = {}
    for line in found:
        if not line.complete or not line.text.startswith(beginning):
            continue
        said = parsed(line)
        if said is not None and _speaks(line.ranks, speakers):
            yield said


def _decode(line: Line) -> DecodeLine | None:
    running = _integer(line.text, "#running-req")
    speed = _figure(line.text, r"gen throughput \(token/s\)")
    if running is None or speed is None:
        return None
    return DecodeLine(
        line.time,
        line.ranks,
        running,
        _integer(line.text, r"#(?:full )?token"),
        _integer(line.text, "#queue-req") or 0,
        speed,
        _graph(line.text),
        _figure(line.text, "accept len"),
    )


def _prefill(line: Line) -> PrefillLine | None:
    sequences = _integer(line.text, "#new-seq")
    new = _integer(line.text, "#new-token")
    if sequences is None or new is None:
        return None
    return PrefillLine(
        line.time,
        line.ranks,
        sequences,
        new,
        _integer(line.text, "#cached-token") or 0,
        _integer(line.text, "#queue-req") or 0,
        _figure(line.text, r"input throughput \(token/s\)"),
    )


def traffic(path: Path, start_offset: int = 0, end_offset: int | None = None) -> dict[str, Any]:
    """Say what the server saw between two byte offsets of its log.

    Returns:
        ``decode_lines``: how many there were; ``decode_tok_s``: median of their throughputs, the
        sum over data-parallel ranks, without each rank's first line, which is divided by the idle
        time before it (None with fewer than two lines a rank); ``running_max``, ``queue_max``;
        ``graph``: ``all | some | none | unknown`` of the decode lines ran in a graph;
        ``accept_len``: mean, None without speculation; ``prompt_tokens`` computed and
        ``cached_tokens`` taken from the prefix cache.
    """
    decode = decode_lines(path, start_offset, end_offset)
    prefill = prefill_lines(path, start_offset, end_offset)
    accepted = [line.accept_len for line in decode if line.accept_len is not None]
    return {
        "decode_lines": len(decode),
        "decode_tok_s": _throughput(decode),
        "running_max": max((line.running for line in decode), default=None),
        "queue_max": max((line.queue for line in decode), default=None),
        "graph": _graphs(decode),
        "accept_len": round(sum(accepted) / len(accepted), 3) if accepted else None,
        "prompt_tokens": sum(line.new_tokens for line in prefill),
        "cached_tokens": sum(line.cached_tokens for line in prefill),
    }


def _throughput(decode: list[DecodeLine]) -> float | None:
    by_rank: dict[str, list[float]] = {}
    for line in decode:
        by_rank.setdefault(_data_parallel(line.ranks), []).append(line.gen_tok_s)
    steady = [median(speeds[1:]) for speeds in by_rank.values() if len(speeds) > 1]
    return round(sum(steady), 2) if steady and len(steady) == len(by_rank) else None


def _graphs(decode: list[DecodeLine]) -> str:
    said = {line.graph for line in decode if line.graph is not None}
    if not said:
        return "unknown"
    if said == {True, False}:
        return "some"
    return "all" if True in said else "none"


def _speaks(ranks: str, speakers: dict[str, str]) -> bool:
    """Whether this rank is the one that speaks for its data-parallel group."""
    return speakers.setdefault(_data_parallel(ranks), ranks) == ranks


def _data_parallel(ranks: str) -> str:
    return next((rank for rank in ranks.split() if rank.startswith("DP")), "")


def _figure(text: str, name: str) -> float | None:
    match = re.search(rf"{name}: {_NUMBER}(?=[,\s]|$)", text)
    return float(match[1]) if match and match[1] not in ("nan", "inf") else None


def _integer(text: str, name: str) -> int | None:
    figure = _figure(text, name)
    return None if figure is None else int(figure)


def _graph(text: str) -> bool | None:
    match = re.search(r"\bgraph: (True|False)", text)
    return match[1] == "True" if match else None
