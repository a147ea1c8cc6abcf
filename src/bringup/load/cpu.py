"""How long a server's threads waited for a CPU that something else had.

The kernel counts for each thread the time in which it was ready to run and did not
(``/proc/<pid>/schedstat``, second figure, nanoseconds; Documentation/scheduler/sched-stats.rst).
Unlike a load average it is exact, and says nothing of loads that don't matter to this server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import psutil

PROC = Path("/proc")

Waits = Mapping[str, float]
"""Thread (``pid/task/tid``) → seconds that it has waited in its life."""


def waits(pid: int) -> Waits:
    """Return the waits of all threads of a process and of what it started; {} if it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        pids = [pid, *(child.pid for child in root.children(recursive=True))]
        return {
            name: seconds
            for each in pids
            for thread in PROC.glob(f"{each}/task/*")
            if (seconds := _waited(thread)) is not None
            for name in [str(thread.relative_to(PROC))]
        }
    return {}


def longest(before: Waits, after: Waits) -> float | None:
    """Return the longest that any one thread waited between two looks, in seconds.

    None where threads can't be looked at (another user's, or a kernel that does not count).
    """
    return max((after[name] - before[name] for name in before.keys() & after.keys()), default=None)


def _waited(thread: Path) -> float | None:
    try:
        return int((thread / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None
