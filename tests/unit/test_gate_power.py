"""The figures of benchmarks/gate_power: what counts as caught, and how sure one can be."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bringup.paths import PROJECT

SPEC = importlib.util.spec_from_file_location(
    "gate_power_page", PROJECT / "benchmarks" / "gate_power" / "page.py"
)
assert SPEC and SPEC.loader
page: Any = importlib.util.module_from_spec(SPEC)
sys.modules["gate_power_page"] = page
SPEC.loader.exec_module(page)


def result(**changed: Any) -> dict[str, Any]:
    return {
        "case": "x",
        "kind": "k",
        "strength": "s",
        "placement": 0,
        "boot": "b1",
        "concurrency": 4,
        "single_question": True,
        "probes": "pass",
        "not_right": 0,
        "reference": [],
        "seconds": 8.0,
        "changed_share": 0.5,
        "kl": 0.1,
        "top1": 0.9,
        **changed,
    }


def clean(**changed: Any) -> dict[str, Any]:
    return result(case="clean", **changed)


@pytest.mark.parametrize(
    ("hits", "of", "bound"),
    [
        (0, 300, 0.00994),  # 1 - 0.05 ** (1 / 300)
        (0, 10, 0.25887),  # 1 - 0.05 ** (1 / 10)
        (1, 10, 0.39416),  # tables of Clopper and Pearson (1934), one-sided 95 %
        (10, 10, 1.0),
    ],
)
def test_upper_bounds_are_those_of_clopper_and_pearson(hits: int, of: int, bound: float) -> None:
    assert page.upper_bound(hits, of) == pytest.approx(bound, abs=2e-5)
    assert page.lower_bound(of - hits, of) == pytest.approx(1 - bound, abs=2e-5)


def test_no_runs_give_no_bound() -> None:
    assert page.upper_bound(0, 0) is None


def test_what_counts_is_caught_models_of_those_that_are_damaged() -> None:
    results = [
        result(probes="wrong", single_question=False),
        result(reference=["mean KL"]),
        result(),
        result(changed_share=0.005, probes="degraded"),  # harmless: not counted
        clean(),
        clean(boot="b2", reference=["tail KL"]),
    ]
    found = page.document(results, weights="0" * 64, revision="f" * 40, made="2026-01-01T00:00:00Z")
    assert (found["cases"], found["damaged_cases"]) == (4, 3)
    assert found["caught_share"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["caught_share_by_probes"] == pytest.approx(1 / 3, abs=1e-4)
    assert found["single_question_caught_share"] == pytest.approx(1 / 3, abs=1e-4)
    assert (found["false_alarms"], found["clean_runs"], found["clean_boots"]) == (1, 2, 2)
    (row,) = found["kinds"]
    assert (row["caught"], row["cases"], row["by_reference"]) == (3, 4, 1)


def test_the_page_names_what_this_architecture_lacks(tmp_path: Path) -> None:
    results = [result(kl=None), clean()]
    page.write(
        page.document(results, weights="0" * 64, revision="f" * 40, made="2026-01-01T00:00:00Z"),
        tmp_path,
    )
    text = (tmp_path / "gate-power.md").read_text(encoding="utf-8")
    assert "| router bias dropped | n/a: its routers have no bias |" in text
    assert "no numbers" in text
    assert json.loads((tmp_path / "gate-power.json").read_text())["clean_runs"] == 1


def test_nothing_done_yet_is_a_page_too(tmp_path: Path) -> None:
    page.write(
        page.document([], weights="0" * 64, revision="f" * 40, made="2026-01-01T00:00:00Z"),
        tmp_path,
    )
    assert "–" in (tmp_path / "gate-power.md").read_text(encoding="utf-8")
