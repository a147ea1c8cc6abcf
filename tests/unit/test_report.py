"""The report says what the documents say: exact cells and sentences from a made-up run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from fixtures.report import study

from bringup import report


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    build(study.write(folder))
    return folder


def build(run: study.Run) -> None:
    report.build(experiments=run.experiments, documents=run.documents, output=run.folder)


@pytest.fixture(scope="module")
def page(results: Path) -> str:
    return (results / "report.md").read_text(encoding="utf-8")


def row(page: str, *starts: str) -> list[str]:
    """Return the cells of the first table row after the headings ``starts[:-1]`` that begins so."""
    lines = iter(page.splitlines())
    for start in starts[:-1]:
        next(line for line in lines if line.startswith(start))
    found = next(line for line in lines if line.startswith(f"| [{starts[-1]}]"))
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_overview_has_status_formats_backend_and_right_answers(page: str) -> None:
    assert row(page, "## Study: dsv4-flash", "nvfp4-marlin")[1:] == [
        "ok",
        "nvfp4 / fp8-block",
        "marlin (confirmed)",
        "25/25",
    ]


def test_backend_that_was_not_used_is_told(page: str) -> None:
    cells = row(page, "## Study: dsv4-flash", "mxfp4-stock")
    assert cells[3] == "auto → torch fallback (fell-back)"


def test_throughput_at_each_level(page: str) -> None:
    assert row(page, "**Output tokens", "nvfp4-cutlass")[1:] == ["10.5", "21.0", "28.0"]


def test_latency_at_each_level(page: str) -> None:
    assert row(page, "**Time to first", "mxfp4-stock")[1:] == [
        "900 / 98.0",
        "1,900 / 430",
        "3,100 / 690",
    ]


def test_wrong_answers_strike_the_figures(page: str) -> None:
    assert row(page, "**Output tokens", "nvfp4-triton")[1:] == ["–", "~~99.1~~", "–"]


def test_wrong_experiment_is_never_ranked(results: Path) -> None:
    document = json.loads((results / "report.json").read_text())
    orders = [ranking["order"] for each in document["studies"] for ranking in each["rankings"]]
    assert "nvfp4-triton" not in {place["experiment"] for order in orders for place in order}


def test_problems_name_the_cause_and_what_to_try(page: str) -> None:
    cells = row(page, "## What did not run", "nvfp4-routed")
    assert cells[1:3] == ["refused", "plan"]
    assert cells[3].startswith("flashinfer_trtllm_routed has kernels for SM100 only")
    assert cells[4].startswith("use marlin, or give force: \\<why>")


def test_csv_has_a_row_for_every_point(results: Path) -> None:
    rows = list(csv.DictReader((results / "points.csv").open(encoding="utf-8")))
    assert len(rows) == 14
    triton = next(each for each in rows if each["experiment"] == "nvfp4-triton")
    assert (triton["output_tok_s"], triton["ranked"]) == ("99.1", "False")


def test_same_documents_same_report(results: Path, tmp_path: Path) -> None:
    build(study.write(tmp_path))
    for name in ("report.md", "report.html", "report.json", "points.csv", "points.jsonl"):
        assert (tmp_path / name).read_bytes() == (results / name).read_bytes(), name


def test_links_lead_to_files_that_the_run_has(page: str) -> None:
    assert "[plan](<experiments/nvfp4-marlin/plan.json>)" in page
    assert "[server log](<experiments/nvfp4-marlin/server.log>)" in page
