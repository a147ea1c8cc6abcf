"""The log of a background process: older ones kept, floods capped, secrets left out."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bringup.redact import HIDDEN, SECRET_NAME, SHORTEST_VALUE, redacted

NOTE = "[bringup "
"""How lines in a log begin that the supervisor wrote, not the process."""

LONGEST_LINE = 1 << 20
"""Bytes after which a line is written although its end has not been seen."""

LOGS_KEPT = 5
"""Logs of one name that are kept: the newest, and older ones as ``name.1.log`` and so on."""


def rotate(log: Path) -> None:
    """Move an existing ``log`` out of the way: ``x.log`` becomes ``x.1.log``, and so on."""
    log.parent.mkdir(parents=True, exist_ok=True)
    names = [log, *(log.with_suffix(f".{age}{log.suffix}") for age in range(1, LOGS_KEPT))]
    for older, newer in reversed(list(zip(names[1:], names[:-1], strict=True))):
        if newer.exists():
            newer.replace(older)


class CappedLog:
    """A log file that keeps its head and its tail when its writer floods it.

    Past ``limit`` bytes the middle is dropped, so that ``keep`` bytes at either end stay; it then
    grows to the limit again.  Readers see it replaced as a whole: one that finds it shorter than
    where it left off has missed what was dropped.
    """

    def __init__(self, path: Path, *, limit: int = 64 << 20, keep: int = 16 << 20) -> None:
        self._path = path
        self._limit = limit
        self._keep = keep
        self._file = path.open("a+b", buffering=0)

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        self._file.write(data)
        if self._file.tell() > self._limit:
            self._drop_middle()

    def note(self, text: str) -> None:
        """Append a line of the supervisor's own."""
        self.write(f"{NOTE}{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n".encode())

    def _drop_middle(self) -> None:
        size = self._file.tell()
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with self._file as old:
            new = draft.open("a+b", buffering=0)
            old.seek(0)
            new.write(old.read(self._keep))
            dropped = size - 2 * self._keep
            new.write(f"\n{NOTE}{dropped} bytes were dropped here: too much output]\n".encode())
            old.seek(-self._keep, os.SEEK_END)
            new.write(old.read())
        draft.replace(self._path)
        self._file = new


def pump(stream: int, log: CappedLog, hidden: list[bytes]) -> None:
    """Copy a process's output to its log, line by line, without the ``hidden`` values.

    Output that can't be written (the disk is full) is lost: the process must not stand still.
    """
    for lines in whole_lines(stream):
        for value in hidden:
            lines = lines.replace(value, HIDDEN.encode())
        with contextlib.suppress(OSError):
            log.write(lines)


def whole_lines(stream: int) -> Iterator[bytes]:
    """Yield what can be read from ``stream``, cut only between lines (unless they are huge)."""
    rest = b""
    while data := os.read(stream, 1 << 16):
        rest += data
        cut = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
        if len(rest) - cut > LONGEST_LINE:
            cut = len(rest)
        yield rest[:cut]
        rest = rest[cut:]
    yield rest


def secret_values(argv: list[str], env: Mapping[str, str]) -> list[bytes]:
    """Return the secrets that a process is given, longest first."""
    shown = zip(argv, redacted(argv), strict=True)
    given = {argument.split("=", 1)[-1] for argument, clean in shown if argument != clean}
    named = {value for name, value in env.items() if SECRET_NAME.search(name)}
    values = {value.encode() for value in given | named if len(value) >= SHORTEST_VALUE}
    return sorted(values, key=len, reverse=True)
