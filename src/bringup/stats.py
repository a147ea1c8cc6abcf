"""Percentiles, spread, and whether one side is really faster than another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import special

Comparison = Literal["faster", "slower", "within-noise", "insufficient"]

LEAST_REPEATS = 3
LEAST_BOOTS = 2
"""A side needs as many before anything is called a difference: boots of one and the same
configuration were seen 32 to 51 % apart (docs/design.md §8)."""

CONFIDENCE = 0.95


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of at least one value."""
    return math.fsum(values) / len(values)


def percentile(ascending: Sequence[float], share: float) -> float:
    """Return the ``share`` % percentile of sorted values, interpolated as NumPy does by default."""
    place = (len(ascending) - 1) * share / 100
    below = math.floor(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """Return the median of at least one value."""
    return percentile(sorted(values), 50)


def spread(values: Sequence[float]) -> float:
    """Return (largest - smallest) / mean: 0.1 says that repeats lie within 10 % of each other."""
    return (max(values) - min(values)) / mean(values) if any(values) else 0.0


@dataclass(frozen=True)
class Measured:
    """One repeat's figure (above 0) and the boot that it was measured on."""

    boot: str
    value: float


@dataclass(frozen=True)
class Difference:
    """How ``b`` compares with ``a``: verdict, effect and what it rests on.

    ``effect`` is b/a - 1 and [``low``, ``high``] its 95 % confidence interval, None where there
    are too few repeats; ``noise`` is the band that had to be left.
    """

    verdict: Comparison
    effect: float | None
    low: float | None
    high: float | None
    noise: float | None
    why: str


def compare(a: Sequence[Measured], b: Sequence[Measured], noise: float | None = None) -> Difference:
    """Say whether ``b`` is faster than ``a`` (values: the higher, the faster).

    The interval is Welch's, over the logarithms of the repeats.  Repeats of one boot agree better
    than boots do, so the interval alone finds differences where there are none: the verdict is
    ``faster`` or ``slower`` only where the whole interval lies outside the noise band.  Where the
    band comes from the boots themselves, and boots scatter by 10 %, two boots a side still call a
    difference where there is none in one case of ten, three in one of a hundred (simulated).

    Args:
        a: repeats of the base.
        b: repeats of the other side.
        noise: relative difference between boots of the same configuration, from base against
            base; by default the largest difference between the boots of either side.
    """
    short = [f"{name} has {_has(side)}" for name, side in (("a", a), ("b", b)) if _few(side)]
    effect = _effect(a, b)
    if short:
        needs = f"at least {LEAST_REPEATS} repeats over {LEAST_BOOTS} boots a side are needed"
        return Difference("insufficient", effect, None, None, noise, f"{needs}; {', '.join(short)}")
    low, high = _interval(a, b)
    band = max(_between_boots(a), _between_boots(b)) if noise is None else noise
    verdict: Comparison = "within-noise"
    if low > band:
        verdict = "faster"
    elif high < 1 / (1 + band) - 1:
        verdict = "slower"
    why = f"95 % interval {low:+.1%} to {high:+.1%}, noise band {band:.1%}"
    return Difference(verdict, effect, low, high, band, why)


def _few(side: Sequence[Measured]) -> bool:
    return len(side) < LEAST_REPEATS or len({each.boot for each in side}) < LEAST_BOOTS


def _has(side: Sequence[Measured]) -> str:
    return f"{len(side)} over {len({each.boot for each in side})}"


def _effect(a: Sequence[Measured], b: Sequence[Measured]) -> float | None:
    if not a or not b:
        return None
    return math.exp(mean(_logs(b)) - mean(_logs(a))) - 1


def _interval(a: Sequence[Measured], b: Sequence[Measured]) -> tuple[float, float]:
    """Return Welch's interval of b/a - 1, with the degrees of freedom of Satterthwaite."""
    sides = [_logs(a), _logs(b)]
    errors = [statistics.variance(side) / len(side) for side in sides]
    middle, error = mean(sides[1]) - mean(sides[0]), math.fsum(errors)
    if error == 0:
        return math.expm1(middle), math.expm1(middle)
    freedom = error**2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(errors, sides, strict=True)
    )
    half = float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(error)
    return math.expm1(middle - half), math.expm1(middle + half)


def _between_boots(side: Sequence[Measured]) -> float:
    """Return the largest relative difference between the boots' (geometric) means."""
    boots = [
        mean(_logs([each for each in side if each.boot == boot]))
        for boot in {each.boot for each in side}
    ]
    return math.exp(max(boots) - min(boots)) - 1


def _logs(side: Sequence[Measured]) -> list[float]:
    return [math.log(each.value) for each in side]
