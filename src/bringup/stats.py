"""Percentiles, spread, and whether one side is really faster than another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

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
    """One repeat's figure (not below 0) and the boot that it was measured on."""

    boot: str
    value: float


@dataclass(frozen=True)
class Difference:
    """How ``b`` compares with ``a``: verdict, effect and what it rests on.

    ``effect`` is b/a - 1 and [``low``, ``high``] its 95 % confidence interval, None where there
    are too few boots; ``noise`` is the difference between boots that it had to exceed.
    """

    verdict: Comparison
    effect: float | None
    low: float | None
    high: float | None
    noise: float | None
    why: str


def typical(values: Sequence[Measured]) -> float:
    """Return one figure for at least one repeat: what tables show, and what effects are ratios of.

    It is the median of a boot's repeats, so that one which something disturbed does not count, and
    over boots, of which there are few, the geometric mean of these medians (0 if one of them is).
    """
    medians = _medians(values)
    return math.exp(mean([math.log(each) for each in medians])) if all(medians) else 0.0


def compare(a: Sequence[Measured], b: Sequence[Measured], noise: float | None = None) -> Difference:
    """Say whether ``b`` is faster than ``a`` (values: the higher, the faster).

    What is compared are boots, each by the median of its repeats: repeats of one boot agree better
    than boots do, and counting them as so many independent measurements finds differences where
    there are none.  The effect is the ratio of both sides' `typical` figures.  The interval is
    Student's for two samples of equal variance, over the logarithms of the boots.  A difference is
    called in one case of twenty at most where there is nothing to find, however boots and repeats
    scatter (simulated: 5 % with two boots a side, 4 % with three, 1 % with four).  With two boots a
    side 28 against 25 tok/s is found in 99 of 100 cases if boots and repeats scatter by 1 %, in 42
    if both do by 3 %; with three, in 78.

    Args:
        a: repeats of the base; every value is above 0.
        b: repeats of the other side.
        noise: relative difference between boots of the same configuration, from base against
            base, which the effect must exceed; by default the largest difference between the
            boots of either side.
    """
    short = [f"{name} has {_has(side)}" for name, side in (("a", a), ("b", b)) if _few(side)]
    boots_a, boots_b = _boots(a), _boots(b)
    effect = math.expm1(mean(boots_b) - mean(boots_a)) if a and b else None
    if short or effect is None:
        needs = f"at least {LEAST_REPEATS} repeats over {LEAST_BOOTS} boots a side are needed"
        return Difference("insufficient", effect, None, None, noise, f"{needs}; {', '.join(short)}")
    low, high = _interval(boots_a, boots_b)
    band = max(_range(boots_a), _range(boots_b)) if noise is None else noise
    verdict: Comparison = "within-noise"
    if low > 0 and effect > band:
        verdict = "faster"
    elif high < 0 and effect < 1 / (1 + band) - 1:
        verdict = "slower"
    why = f"95 % interval {low:+.1%} to {high:+.1%}, boots of one side differ by {band:.1%}"
    return Difference(verdict, effect, low, high, band, why)


def _few(side: Sequence[Measured]) -> bool:
    return len(side) < LEAST_REPEATS or len({each.boot for each in side}) < LEAST_BOOTS


def _has(side: Sequence[Measured]) -> str:
    return f"{len(side)} over {len({each.boot for each in side})}"


def _boots(side: Sequence[Measured]) -> list[float]:
    """Return the logarithm of each boot's figure."""
    return [math.log(each) for each in _medians(side)]


def _medians(side: Sequence[Measured]) -> list[float]:
    """Return the median of each boot's repeats."""
    values: dict[str, list[float]] = {}
    for each in side:
        values.setdefault(each.boot, []).append(each.value)
    return [median(of_boot) for of_boot in values.values()]


def _interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return Student's interval of b/a - 1, from the logarithms of the boots."""
    freedom = len(a) + len(b) - 2
    pooled = (_squares(a) + _squares(b)) / freedom
    error = math.sqrt(pooled * (1 / len(a) + 1 / len(b)))
    middle = mean(b) - mean(a)
    half = _student(freedom) * error
    return math.expm1(middle - half), math.expm1(middle + half)


@cache
def _student(freedom: int) -> float:
    """Return the quantile of Student's distribution that an interval of both sides is made of."""
    from scipy import special  # here: 0.4 s that no job but the report's has a use for

    return float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _squares(values: Sequence[float]) -> float:
    """Return the sum of the squared distances from the mean."""
    middle = mean(values)
    return math.fsum((each - middle) ** 2 for each in values)


def _range(boots: Sequence[float]) -> float:
    """Return the largest relative difference between boots."""
    return math.expm1(max(boots) - min(boots))
