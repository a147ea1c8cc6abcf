"""`python -m bringup.report`: the report from what is there, without Snakemake."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from fixtures.report import study
from test_report_schema import schema_of

from bringup import asked
from bringup.report.__main__ import main


@pytest.fixture
def results(tmp_path: Path) -> Path:
    run = study.write(tmp_path)
    asked.write(tmp_path, run.experiments, [str(path) for path in run.documents])
    return tmp_path


def test_what_was_asked_keeps_to_its_schema(results: Path) -> None:
    jsonschema.validate(json.loads((results / "asked.json").read_text()), schema_of("asked"))


def test_an_unfinished_run_gives_a_report_that_says_so(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(results)]) == 1
    assert capsys.readouterr().out == f"{results}/report.html\n"
    assert "3 of the documents asked for are not there yet" in (results / "report.md").read_text()


def test_results_that_were_moved_are_still_reported(results: Path, tmp_path: Path) -> None:
    moved = results.rename(tmp_path.with_name("moved"))
    assert main([str(moved), "--output", str(moved / "again")]) == 1
    page = (moved / "again" / "report.md").read_text()
    assert "[plan](../experiments/nvfp4-marlin/plan.json)" in page


def test_all_that_was_asked_for_is_there(results: Path) -> None:
    document = json.loads((results / "asked.json").read_text())
    kept = [each for each in document["experiments"] if each["name"] != "nvfp4-late"]
    there = [place for place in document["documents"] if "nvfp4-late" not in place]
    (results / "asked.json").write_text(
        json.dumps(document | {"experiments": kept, "documents": there})
    )
    assert main([str(results)]) == 0


def test_looking_in_between_is_not_the_previous_report(results: Path) -> None:
    assert main([str(results)]) == 1
    assert not (results / "history.jsonl").exists()


def test_json_is_printed_and_no_page_written(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(results), "--json"])
    assert json.loads(capsys.readouterr().out)["schema"] == "report/1"
    assert not (results / "report.md").exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "No such file or directory"),
        ("{", "not JSON"),
        ('{"schema": "asked/0"}', "is 'asked/0', not asked/1: run again"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, text: str | None, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "asked.json").write_text(text)
    assert main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
