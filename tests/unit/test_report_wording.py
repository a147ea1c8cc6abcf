"""Numbers as people read them."""

from __future__ import annotations

import pytest

from bringup.report import text, wording


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.523, "0.52"),
        (5.234, "5.23"),
        (9.996, "10.0"),
        (52.34, "52.3"),
        (99.96, "100"),
        (523.4, "523"),
        (4687.1, "4,687"),
        (0, "0.00"),
    ],
)
def test_figure(value: float | None, shown: str) -> None:
    assert wording.figure(value) == shown


@pytest.mark.parametrize(
    ("effect", "shown"),
    [
        (None, "–"),
        (0.24, "+24 %"),
        (-0.05, "−5.0 %"),
        (0.0004, "±0 %"),
        (-0.0004, "±0 %"),
        (0.0996, "+10 %"),
        (1.5, "+150 %"),
    ],
)
def test_change(effect: float | None, shown: str) -> None:
    assert wording.change(effect) == shown


def test_interval() -> None:
    assert wording.interval(0.19, 0.29) == "[+19, +29]"
    assert wording.interval(-0.02, 0.004) == "[−2, +0]"
    assert wording.interval(None, None) == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (3.21, "3.2 s"),
        (35, "35 s"),
        (59.6, "1 min 0 s"),
        (250, "4 min 10 s"),
        (7500, "2 h 5 min"),
    ],
)
def test_seconds(value: float | None, shown: str) -> None:
    assert wording.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (512, "512 B"), (14_717_376, "14.0 MiB"), (168_200_000_000, "156.6 GiB")],
)
def test_size(value: int | None, shown: str) -> None:
    assert wording.size(value) == shown


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (list("abcd"), "a, b, c and d"),
        (list("abcde"), "a, b, c and 2 more"),
    ],
)
def test_many_names_are_cut_short_but_never_by_one(names: list[str], shown: str) -> None:
    assert wording.some(names) == shown


def test_two_names_never_share_a_file() -> None:
    names = ["a", "a/b", "a_b", "..", "x" * 300, "x" * 301, "é"]
    slugs = {text.slug(name) for name in names}
    assert len(slugs) == len(names)
    assert all(len(slug) <= 120 and "/" not in slug and slug[0] != "." for slug in slugs)
