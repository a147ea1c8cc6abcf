"""Percentiles, and when a difference may be called one."""

from __future__ import annotations

import numpy
import pytest

from bringup import stats
from bringup.stats import Measured


@pytest.mark.parametrize("share", [0, 10, 50, 90, 99, 100])
@pytest.mark.parametrize("values", [[3.0], [1.0, 2.0], [5.0, 1.0, 4.0, 2.0, 8.0]])
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    expected = numpy.percentile(values, share)
    assert stats.percentile(sorted(values), share) == pytest.approx(expected)


def test_spread_and_median() -> None:
    assert stats.spread([90.0, 100.0, 110.0]) == pytest.approx(0.2)
    assert stats.spread([0.0, 0.0]) == 0
    assert stats.median([3.0, 1.0, 2.0]) == 2.0


def side(*boots: list[float]) -> list[Measured]:
    return [Measured(f"boot-{n}", v) for n, values in enumerate(boots) for v in values]


STEADY_28 = side([28.1, 27.9, 28.0], [28.2, 27.8, 28.0])
STEADY_25 = side([25.1, 24.9, 25.0], [25.2, 24.8, 25.0])
NOISY_28 = side([33.0, 32.5, 33.2], [23.0, 23.5, 22.8])


def test_the_same_speed_is_within_noise() -> None:
    again = side([28.0, 28.1, 27.9], [27.9, 28.1, 28.0])
    assert stats.compare(STEADY_28, again).verdict == "within-noise"


def test_a_clear_difference_is_called_by_its_direction() -> None:
    faster = stats.compare(STEADY_25, STEADY_28)
    slower = stats.compare(STEADY_28, STEADY_25)
    assert (faster.verdict, slower.verdict) == ("faster", "slower")
    assert faster.effect == pytest.approx(28 / 25 - 1, rel=1e-3)
    assert faster.low is not None and faster.high is not None
    assert faster.low < 0.12 < faster.high


def test_the_interval_is_welchs() -> None:
    """The figures of scipy.stats.ttest_ind(equal_var=False) on the logarithms, worked out apart."""
    a, b = side([10.0, 11.0], [12.0]), side([13.0, 15.0], [14.0, 17.0])
    difference = stats.compare(a, b)
    assert (difference.low, difference.high) == pytest.approx((0.0950, 0.6349), abs=1e-4)


def test_28_against_25_is_nothing_where_boots_differ_more() -> None:
    assert stats.compare(STEADY_25, NOISY_28).verdict == "within-noise"
    assert stats.compare(STEADY_25, STEADY_28, noise=0.32).verdict == "within-noise"


@pytest.mark.parametrize(
    "few",
    [
        [],
        side([28.0]),
        side([28.0, 28.0, 28.0]),  # one boot only
        side([28.0], [28.0]),  # two repeats only
    ],
)
def test_too_few_repeats_or_boots_are_insufficient(few: list[Measured]) -> None:
    difference = stats.compare(few, STEADY_28)
    assert difference.verdict == "insufficient"
    assert "a has" in difference.why and "b has" not in difference.why


def test_repeats_without_any_spread_still_get_a_verdict() -> None:
    a, b = side([10.0, 10.0], [10.0]), side([12.0, 12.0], [12.0])
    assert stats.compare(a, b).verdict == "faster"
    assert stats.compare(a, a).verdict == "within-noise"


def test_boots_of_one_configuration_are_rarely_called_different() -> None:
    """Boots scatter by 10 %, their repeats by 1 %: three boots a side, nothing to find."""
    chance = numpy.random.default_rng(1)

    def draw() -> list[Measured]:
        return side(*[list(boot * chance.normal(1, 0.01, 3)) for boot in chance.normal(1, 0.1, 3)])

    verdicts = [stats.compare(draw(), draw()).verdict for _ in range(100)]
    assert sum(verdict != "within-noise" for verdict in verdicts) <= 5
