"""Read torch profiler traces of any size: which kernels ran, how often, for how long.

A trace is Chrome's trace format as PyTorch's Kineto writes it: an object whose ``traceEvents`` hold
one object per event, or only that list; plain or gzip.  Decoding one event at a time with the
standard library's JSON scanner is half again as fast as ijson's C backend, keeps one block in
memory, and leaves everything before a defect usable.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import zlib
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

BLOCK = 4 << 20
"""Bytes decoded at a time."""

LARGEST_EVENT = 16 << 20
"""Characters after which an event that does not end is taken for a defect."""

LARGEST_HEAD = 64 << 20
"""Characters in which the list of events must begin."""

K = TypeVar("K", bound=Hashable)

_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[|^\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_GZIP = 16 + zlib.MAX_WBITS
_STEP = re.compile(r"^step\[(\w+) bs=(\d+)")


@dataclass
class Tally:
    """How often something ran, and for how long in all, in microseconds."""

    launches: int = 0
    us: float = 0.0

    def add(self, launches: int, us: float) -> None:
        """Add more of the same."""
        self.launches += launches
        self.us += us


@dataclass
class Trace:
    """What one or more trace files hold."""

    kernels: dict[str, Tally] = field(default_factory=dict)
    """GPU kernels by name."""
    copies: dict[str, Tally] = field(default_factory=dict)
    """Copies and fills of GPU memory by name; not part of the kernels' time."""
    operators: dict[tuple[str, str | None], Tally] = field(default_factory=dict)
    """PyTorch operators by name and by the label of the innermost labelled Python frame around
    them, with their own time: what they called is not counted twice."""
    window_us: float = 0.0
    """From each file's first kernel to the end of its last, added up over the files."""
    steps: dict[str, int] = field(default_factory=dict)
    """Forward passes by kind, as SGLang marks them: ``DECODE bs=8``."""
    devices: list[str] = field(default_factory=list)
    """Names of the devices that the trace tells of."""
    files: int = 0
    defects: list[str] = field(default_factory=list)
    """What could not be read, one line each."""

    def add(self, other: Trace) -> None:
        """Merge the trace of another rank into this one."""
        _merge(self.kernels, other.kernels)
        _merge(self.copies, other.copies)
        _merge(self.operators, other.operators)
        self.window_us += other.window_us
        for kind, count in other.steps.items():
            # Every rank marks the same steps.
            self.steps[kind] = max(count, self.steps.get(kind, 0))
        self.devices += [name for name in other.devices if name not in self.devices]
        self.files += other.files
        self.defects += other.defects


def _merge(mine: dict[K, Tally], theirs: Mapping[K, Tally]) -> None:
    for name, tally in theirs.items():
        mine.setdefault(name, Tally()).add(tally.launches, tally.us)


def read(path: Path, label: Callable[[str], str | None] = lambda frame: None) -> Trace:
    """Return what the trace at ``path`` holds, up to its first defect, which is named in it.

    Args:
        path: the trace.
        label: names a Python frame (``sglang/srt/layers/linear.py(381): forward``), or returns
            None for frames that do not matter.

    Raises:
        OSError: the file cannot be read.
    """
    trace = Trace(files=1)
    events = _Events(trace, label)
    try:
        for event in _events(_blocks(path), trace):
            events.count(event)
    except _DefectError as defect:
        trace.defects.append(f"{path.name}: {defect}")
    events.finish()
    return trace


class _DefectError(Exception):
    """The trace cannot be read any further."""


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked if it is gzip, up to the place where it is damaged."""
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        raw = iter(lambda: stream.read(BLOCK), b"")
        yield from _unpacked(raw) if packed else raw


def _unpacked(raw: Iterator[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=_GZIP)
    for block in raw:
        while block:
            if unpacker.eof:  # another member follows
                unpacker = zlib.decompressobj(wbits=_GZIP)
            try:
                yield unpacker.decompress(block, BLOCK)
            except zlib.error as error:
                raise _DefectError(f"damaged gzip stream: {error}") from None
            block = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    if not unpacker.eof:
        raise _DefectError("damaged gzip stream: cut off")


def _events(blocks: Iterator[bytes], trace: Trace) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a trace; note the devices that its head names."""
    text = _Text(blocks)
    _seek_events(text, trace)
    decode = json.JSONDecoder().raw_decode
    while True:
        text.skip(_BETWEEN)
        if text.at == len(text.buffer):
            if not text.more():
                raise _DefectError("cut off: the list of events does not end")
            continue
        if text.buffer[text.at] == "]":
            return
        try:
            event, text.at = decode(text.buffer, text.at)
        except json.JSONDecodeError as error:
            left = len(text.buffer) - text.at
            if left > LARGEST_EVENT:
                raise _DefectError(f"no JSON at character {text.position}: {error.msg}") from None
            if not text.more():
                raise _DefectError("cut off in the middle of an event") from None
            continue
        if isinstance(event, dict):
            yield event


class _Text:
    """A window on a long text: what is read and not used yet."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._dropped = 0
        self.buffer = ""
        self.at = 0

    @property
    def position(self) -> int:
        """Characters of the whole text in front of ``at``."""
        return self._dropped + self.at

    def skip(self, pattern: re.Pattern[str]) -> None:
        """Go on behind what fits ``pattern``, within the buffer."""
        match = pattern.match(self.buffer, self.at)
        self.at = match.end() if match else self.at

    def more(self) -> bool:
        """Read another block behind what is left; False at the end."""
        block = next(self._blocks, None)
        if block is None:
            return False
        self._dropped += self.at
        self.buffer = self.buffer[self.at :] + self._decoder.decode(block)
        self.at = 0
        return True


def _seek_events(text: _Text, trace: Trace) -> None:
    while True:
        found = _EVENTS.search(text.buffer)
        if found:
            break
        if len(text.buffer) > LARGEST_HEAD or not text.more():
            raise _DefectError("no list of events: empty, or not a trace")
    head = text.buffer[: found.start()].rstrip().rstrip(",")
    text.at = found.end()
    try:
        told = json.loads(head + "}") if head else {}
    except json.JSONDecodeError:
        told = {}
    trace.devices = [
        str(device.get("name"))
        for device in told.get("deviceProperties") or []
        if isinstance(device, dict)
    ]


class _Events:
    """Counts the events of one file into its trace."""

    def __init__(self, trace: Trace, label: Callable[[str], str | None]) -> None:
        self._trace = trace
        self._label = cache(label)
        self._begin, self._end = math.inf, -math.inf
        self._threads: dict[tuple[Any, Any], _Thread] = defaultdict(_Thread)

    def count(self, event: Mapping[str, Any]) -> None:
        """Count an event; one without a name or a duration counts nothing."""
        category, name, us = event.get("cat"), event.get("name"), event.get("dur")
        if event.get("ph") != "X" or not isinstance(name, str) or not isinstance(us, int | float):
            return
        start = event.get("ts")
        if category == "kernel":
            _tally(self._trace.kernels, name, us)
            if isinstance(start, int | float):
                self._begin, self._end = min(self._begin, start), max(self._end, start + us)
        elif category in ("gpu_memcpy", "gpu_memset"):
            _tally(self._trace.copies, name, us)
        elif category == "user_annotation" and (step := _STEP.match(name)):
            kind = f"{step[1]} bs={step[2]}"
            self._trace.steps[kind] = self._trace.steps.get(kind, 0) + 1
        elif isinstance(start, int | float):
            if category == "cpu_op":
                self._thread(event).call(name, start, us)
            elif category == "python_function" and (label := self._label(name)):
                self._thread(event).frame(label, start, start + us)

    def finish(self) -> None:
        """Add up what can be told only at the end."""
        self._trace.window_us = max(0.0, self._end - self._begin)
        for thread in self._threads.values():
            _merge(self._trace.operators, thread.tallies())

    def _thread(self, event: Mapping[str, Any]) -> _Thread:
        return self._threads[event.get("pid"), event.get("tid")]


def _tally(tallies: dict[str, Tally], name: str, us: float) -> None:
    tally = tallies.get(name)
    if tally is None:
        tally = tallies[name] = Tally()
    tally.launches += 1
    tally.us += us


class _Thread:
    """The operator calls of one thread, which nest, and the labelled Python frames around them.

    Kineto writes both in the order of their start, but all calls before all frames: calls are kept
    until then, 20 bytes each.
    """

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._call_name, self._call_start, self._call_us = array("i"), array("d"), array("d")
        self._open: list[tuple[float, int]] = []
        self._frames: list[tuple[float, float, str]] = []

    def call(self, name: str, start: float, us: float) -> None:
        """Keep a call, and take its time off its caller's own."""
        while self._open and self._open[-1][0] <= start:
            self._open.pop()
        if self._open:
            self._call_us[self._open[-1][1]] -= us
        self._open.append((start + us, len(self._call_us)))
        self._call_name.append(self._names.setdefault(name, len(self._names)))
        self._call_start.append(start)
        self._call_us.append(us)

    def frame(self, label: str, start: float, end: float) -> None:
        """Keep a labelled frame."""
        self._frames.append((start, end, label))

    def tallies(self) -> dict[tuple[str, str | None], Tally]:
        """Return calls and own times by operator and innermost frame."""
        names = list(self._names)
        frames = deque(sorted(self._frames, key=lambda frame: (frame[0], -frame[1])))
        around: list[tuple[float, float, str]] = []
        tallies: dict[tuple[str, str | None], Tally] = defaultdict(Tally)
        for name, start, us in zip(self._call_name, self._call_start, self._call_us, strict=True):
            while frames and frames[0][0] <= start:
                around.append(frames.popleft())
            while around and around[-1][1] <= start:
                around.pop()
            label = around[-1][2] if around else None
            tallies[names[name], label].add(1, max(0.0, us))
        return tallies
