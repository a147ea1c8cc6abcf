"""Progress of long work on bytes: how much, how fast, how long still."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Self

from bringup.checkpoint.errors import UnreachableError

EVERY_S = 10.0
"""Seconds between two lines."""

GIB = 2**30


def say(text: str) -> None:
    """Tell the log what happens; a job's stderr is its log."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Counts bytes from several threads, and says from time to time how far it is."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = EVERY_S,
    ) -> None:
        """Start at 0 of ``total`` bytes.

        Args:
            what: what is done with the bytes, as the lines call it.
            total: the bytes of the whole work.
            clock: seconds that only grow.
            every_s: seconds between two lines.
        """
        self.what, self.total, self.done = what, total, 0
        self._clock, self._every_s = clock, every_s
        self._started = self._said = clock()
        self._lock = Lock()
        self._stopped = False

    def stop(self) -> None:
        """End downloads that count here at their next bytes: the user has interrupted the work."""
        self._stopped = True

    def check_stopped(self) -> None:
        """Raise if the work was stopped.

        Raises:
            UnreachableError: it was.
        """
        if self._stopped:
            raise UnreachableError(f"{self.what}: interrupted")

    def add(self, count: int) -> None:
        """Count ``count`` more bytes (fewer, if negative: work that must be done again)."""
        with self._lock:
            self.done += count
            now = self._clock()
            if now - self._said < self._every_s:
                return
            self._said = now
        say(self.line(now))

    def line(self, now: float | None = None) -> str:
        """Return the state as one line."""
        seconds = (self._clock() if now is None else now) - self._started
        rate = self.done / seconds if seconds > 0 else 0.0
        share = 100 * self.done / self.total if self.total else 100.0
        left = _duration((self.total - self.done) / rate) if rate > 0 else "unknown time"
        return (
            f"{self.what}: {self.done / GIB:.2f} of {self.total / GIB:.2f} GiB ({share:.1f} %), "
            f"{rate / 2**20:.0f} MiB/s, {left} left"
        )

    def bar(self) -> type[Quiet]:
        """Return a class that huggingface_hub uses for one file in place of tqdm's."""

        class Bar(_Counting):
            progress = self
            counted = 0

        return Bar


class Quiet:
    """A progress bar, as far as huggingface_hub needs one, that shows nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take whatever a bar is told about its looks."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def update(self, count: float | None = 1) -> None:
        """Ignore bytes that were written."""

    def update_transfer(self, count: float | None = 1) -> None:
        """Ignore bytes on the wire: the files' bytes are what counts."""

    def set_postfix_str(self, *_: Any, **__: Any) -> None:
        """Show nothing."""

    set_transfer_postfix_str = set_postfix_str

    def close(self) -> None:
        """Do nothing."""


class _Counting(Quiet):
    """Counts the bytes of one file; huggingface_hub makes a new one for every attempt."""

    progress: Progress
    counted: int
    """Bytes of this file so far; kept by the class, so that the next attempt takes them back."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Start the file anew."""
        self.progress.add(-type(self).counted)
        type(self).counted = 0

    def update(self, count: float | None = 1) -> None:
        """Count bytes that were written."""
        self.progress.check_stopped()
        type(self).counted += int(count or 0)
        self.progress.add(int(count or 0))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
