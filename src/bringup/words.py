"""Lists, counts and durations as sentences say them."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[str], last: str = "and") -> str:
    """Return items as a sentence lists them: ``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def some(names: Sequence[str], most: int = 3) -> str:
    """Return names as a sentence lists them, many of them cut short: ``a, b, c and 9 more``."""
    left = len(names) - most
    return listed([*names[:most], f"{left} more"] if left > 1 else names)


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 repeat``, ``3 repeats``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def levels(concurrencies: Sequence[int]) -> str:
    """Return concurrency levels as sentences name them: ``C = 1, 8 and 16``."""
    return f"C = {listed([str(level) for level in concurrencies])}"


def seconds(value: float) -> str:
    """Return a duration: ``0.4 s``, ``35 s``, ``4 min 10 s``, ``2 h 5 min``."""
    whole = round(value)
    if whole < 60:
        return f"{value:.1f} s" if value < 9.95 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def about(value: float) -> str:
    """Return an estimated duration, no more exact than it is: ``40 s``, ``12 min``, ``2 h``."""
    if value < 60:
        return f"{max(5, 5 * round(value / 5))} s"
    return f"{round(value / 60)} min" if value < 5400 else f"{value / 3600:.1f} h"
