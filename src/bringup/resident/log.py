"""The log of a background process: older ones kept, floods capped, no secrets, no home."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path

from bringup import paths
from bringup.redact import HIDDEN, SECRET_NAME, SHORTEST_VALUE, redacted

NOTE = "[bringup "
"""How lines in a log begin that the supervisor wrote, not the process."""

DROPPED = "bytes were dropped here"
"""How a log says that its middle is missing; a whole line of it begins with `NOTE`."""

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
        self._drop_at = limit

    def write(self, data: bytes) -> None:
        """Append ``data``; what can't be written (the disk is full) is lost."""
        with contextlib.suppress(OSError):
            self._file.write(data)
            if self._file.tell() > self._drop_at:
                self._drop_at += (
                    self._limit - 2 * self._keep
                )  # if this try fails: not at once again
                self._drop_middle()

    def note(self, text: str) -> None:
        """Append a line of the supervisor's own."""
        self.write(f"{NOTE}{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n".encode())

    def _drop_middle(self) -> None:
        size = self._file.tell()
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        new = draft.open("a+b", buffering=0)
        try:
            self._file.seek(0)
            _write(new, self._file.read(self._keep))
            gone = f"\n{NOTE}{size - 2 * self._keep} {DROPPED}: too much output]\n"
            _write(new, gone.encode())
            self._file.seek(-self._keep, os.SEEK_END)
            _write(new, self._file.read())
            draft.replace(self._path)
        except OSError:
            new.close()
            draft.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = new
        self._drop_at = self._limit


def _write(file: FileIO, data: bytes) -> None:
    """Write all of ``data``.

    Raises:
        OSError: only a part of it could be written: there is no more room.
    """
    if file.write(data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def pump(stream: int, log: CappedLog, hidden: list[bytes]) -> None:
    """Copy a process's output to its log, line by line.

    ``hidden`` values are left out, and ``{home}`` stands for the user's home folder.
    Whatever happens to the log, all is read: the process must not stand still.
    """
    for lines in whole_lines(stream):
        for value in hidden:
            lines = lines.replace(value, HIDDEN.encode())
        log.write(_homeless(lines))


def _homeless(lines: bytes) -> bytes:
    text = lines.decode("utf-8", "surrogateescape")
    return paths.homeless(text).encode("utf-8", "surrogateescape")


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
