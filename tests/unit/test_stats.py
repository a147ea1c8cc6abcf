"""Percentiles, and when a difference may be called one."""

from __future__ import annotations

import numpy
import pytest
import scipy.stats

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


STEADY_28 = side([28.1, 27.9, 28.05], [28.2, 27.8, 27.95])
STEADY_25 = side([25.1, 24.9, 25.05], [25.2, 24.8, 24.95])
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


def test_the_interval_is_students_over_the_boots() -> None:
    """The figures of scipy.stats.ttest_ind on the logarithms of the boots' medians."""
    a, b = side([10.0, 10.0], [11.0]), side([13.0, 13.0], [14.0, 14.0])
    difference = stats.compare(a, b)
    logs = [numpy.log([10, 11]), numpy.log([13, 14])]
    apart = scipy.stats.ttest_ind(logs[1], logs[0]).confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx(
        (numpy.expm1(apart.low), numpy.expm1(apart.high))
    )


def test_the_effect_is_the_ratio_of_what_tables_show() -> None:
    """A disturbed repeat: by means the second side would be 5 % slower, not 4 % faster."""
    disturbed, other = side([100.0, 100.0, 130.0]), side([104.0, 104.0, 104.0])
    assert (stats.typical(disturbed), stats.typical(other)) == pytest.approx((100, 104))
    assert stats.compare(disturbed, other).effect == pytest.approx(0.04)
    boots = side([100.0, 100.0, 130.0], [121.0])
    assert stats.typical(boots) == pytest.approx(110)  # of 100 and 121
    assert stats.compare(boots, other).effect == pytest.approx(104 / 110 - 1)
    assert stats.typical(side([0.0, 5.0, 0.0], [3.0])) == 0


def test_more_repeats_of_the_same_boots_prove_nothing_more() -> None:
    """Two boots a side that differ by 5 %, with repeats that agree: pseudo-replication."""
    a, b = side([100.0] * 3, [105.0] * 3), side([106.0] * 3, [111.0] * 3)
    many = side([106.0] * 300, [111.0] * 300)
    assert stats.compare(a, b).verdict == stats.compare(a, many).verdict == "within-noise"


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


@pytest.mark.parametrize("boots", [2, 3])
def test_boots_of_one_configuration_are_rarely_called_different(boots: int) -> None:
    """Boots scatter by 10 %, their repeats by 1 %, and there is nothing to find: 5 % of 400."""
    chance = numpy.random.default_rng(1)

    def draw() -> list[Measured]:
        drawn = numpy.exp(chance.normal(0, 0.1, boots))
        return side(*[list(boot * numpy.exp(chance.normal(0, 0.01, 3))) for boot in drawn])

    verdicts = [stats.compare(draw(), draw()).verdict for _ in range(400)]
    assert sum(verdict != "within-noise" for verdict in verdicts) <= 32  # 20 expected, sigma 4.4


@pytest.mark.parametrize(("scatter", "found"), [(0.005, True), (0.10, False)])
def test_28_against_25_is_a_difference_if_the_boots_say_so(scatter: float, found: bool) -> None:
    base = side([25 * (1 - scatter)] * 3, [25 * (1 + scatter)] * 3)
    other = side([28 * (1 - scatter)] * 3, [28 * (1 + scatter)] * 3)
    assert stats.compare(base, other).verdict == ("faster" if found else "within-noise")
