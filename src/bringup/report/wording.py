"""Numbers as people read them, the same in every table, sentence and picture."""

from __future__ import annotations

from collections.abc import Sequence

from bringup import words
from bringup.artifact import Document
from bringup.words import counted, levels, listed, some

__all__ = [
    "NOTHING",
    "change",
    "counted",
    "figure",
    "interval",
    "levels",
    "listed",
    "period",
    "revision",
    "seconds",
    "share",
    "size",
    "some",
    "watts",
]

NOTHING = "–"


def figure(value: float | None) -> str:
    """Return a measured value with three significant digits: 4,687 · 523 · 52.3 · 0.52."""
    if value is None:
        return NOTHING
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def change(effect: float | None) -> str:
    """Return a relative difference in percent: 0.24 → ``+24 %``, -0.005 → ``−0.5 %``."""
    if effect is None:
        return NOTHING
    percent = 100 * effect
    shown = f"{percent:+.{0 if abs(percent) >= 9.95 else 1}f}"
    return "±0 %" if float(shown) == 0 else f"{shown} %".replace("-", "−")


def interval(low: float | None, high: float | None) -> str:
    """Return a band of relative differences in percent: (0.19, 0.29) → ``[+19, +29]``."""
    if low is None or high is None:
        return ""
    ends = (f"{100 * end:+.0f}".replace("-", "−") for end in (low, high))
    return f"[{', '.join(ends)}]"


def share(value: float | None) -> str:
    """Return a part of a whole in percent: 0.204 → ``20.4 %``."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def size(count: float | None) -> str:
    """Return bytes as people say them, in powers of 1,024."""
    if count is None:
        return NOTHING
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} TiB"


def seconds(value: float | None) -> str:
    """Return a duration: ``35 s``, ``4 min 10 s``, ``2 h 5 min``."""
    return NOTHING if value is None else words.seconds(value)


def watts(limits: Sequence[float]) -> str:
    """Return the power limits of GPUs, equal ones together: ``4 × 600 W``."""
    return listed([f"{limits.count(each)} × {each:g} W" for each in dict.fromkeys(limits)])


def period(made: Document | None) -> str:
    """Return when something was: ``2026-06-17 09:30 to 10:05 UTC``."""
    if made is None:
        return NOTHING
    begin, end = (str(made[key])[:16].replace("T", " ") for key in ("started", "ended"))
    same_day = begin[:11] == end[:11]
    return f"{begin} to {end[11:] if same_day else end} UTC"


def revision(workflow: Document) -> str:
    """Return a revision of the workflow: ``3f2a… with uncommitted changes in config/x.yaml``."""
    changed = some(workflow.get("changed") or [], 4)
    return (
        f"{workflow['commit'][:12]}{f' with uncommitted changes in {changed}' if changed else ''}"
    )
