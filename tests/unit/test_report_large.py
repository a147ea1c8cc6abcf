"""A report of more experiments than a page can hold: bounded pages, whole files beside them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from fixtures.report import study

from bringup import report
from bringup.report import page

LEVELS = (1, 8)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies of 12 and 12 experiments, each faster than the one before; a page holds six."""
    run = study.Run(tmp_path_factory.mktemp("large"))
    run.add("hardware.json", study.HARDWARE)
    for number in range(12):
        for name in (f"large-{number:02}", f"small-{number:02}"):
            run.experiments.append(study.entry(name, name[:5], "nvfp4", "june"))
            plan = study.plan(name, "nvfp4", "june", "marlin", ("nvfp4", "fp8-block"))
            if number in (3, 5):
                why = study.reason("table", f"reason {number % 2}")
                plan |= study.head("plan/1", "refused", why)
            run.add(f"experiments/{name}/plan.json", plan)
            if number in (3, 5):
                continue
            folder = f"experiments/{name}"
            run.add(f"{folder}/weights.json", {**study.head("weights/1"), "files": []})
            server = study.server(name, "marlin", "marlin", "confirmed", 400.0)
            run.add(f"{folder}/server.json", server)
            run.add(f"{folder}/probe.json", study.probe(name, 25))
            for level in LEVELS:
                speed = 100.0 * level + number
                point = study.point(name, level, (speed,) * 3, 20.0, 10.0)
                run.add(f"{folder}/points/c{level}.json", point)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "MOST_EXPERIMENTS", 6)
        report.build(experiments=run.experiments, documents=run.documents, output=run.folder)
    return run.folder


def sections(results: Path) -> list[str]:
    return re.findall(r'id="experiment-([^"]+)"', (results / "report.html").read_text())


def test_the_page_shows_the_fastest_of_each_study_and_why_others_have_no_rank(results):
    # Three a study, in turn: the fastest, the first that was refused, the second fastest.
    assert sections(results) == [
        f"{name}-{number:02}" for number in (3, 10, 11) for name in ("large", "small")
    ]
    markdown = (results / "report.md").read_text()
    assert re.findall(r"^### (.+)$", markdown, re.MULTILINE) == sections(results)


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_the_page_says_that_it_is_not_all(results, name):
    text = (results / name).read_text()
    assert text.count("this page shows 6 of 24 experiments") == 1
    assert "points.csv, points.jsonl and report.json, which hold all" in text


def test_no_link_of_the_page_leads_nowhere(results):
    html = (results / "report.html").read_text()
    links = set(re.findall(r'href="#experiment-([^"]+)"', html))
    assert links and links <= set(sections(results))
    markdown = (results / "report.md").read_text()
    defined = set(re.findall(r"^\[([^]]+)\]: #", markdown, re.MULTILINE))
    assert set(re.findall(r"\[((?:large|small)-\d+)\]", markdown)) == defined


def test_reasons_are_about_all_experiments(results):
    markdown = (results / "report.md").read_text()
    assert re.search(r"reason 1\.\n  4 experiments: \[large-03\], \[small-03\] …\n", markdown)
    assert markdown.count("10 of 12 experiments are right; 2 refused.") == 2


def test_the_files_hold_every_point(results):
    measured = [
        (f"{name}-{number:02}", level, 100 * level + number)
        for number in range(12)
        if number not in (3, 5)
        for name in ("large", "small")
        for level in LEVELS
    ]
    with (results / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = [
        (row["experiment"], int(row["concurrency"]), float(row["output_tok_s"])) for row in rows
    ]
    assert found == measured
    lines = [json.loads(line) for line in (results / "points.jsonl").read_text().splitlines()]
    found = [(each["experiment"], each["concurrency"], each["output_tok_s"]) for each in lines]
    assert found == measured
    whole = json.loads((results / "report.json").read_text())
    assert len(whole["experiments"]) == 24
    assert whole["notices"] == []


def test_many_levels_leave_room_for_fewer_experiments(results, monkeypatch):
    whole = json.loads((results / "report.json").read_text())
    monkeypatch.setattr(page, "MOST_POINTS", 2 * 5)
    assert len(page.of(whole).report["experiments"]) == 5
    monkeypatch.setattr(page, "MOST_POINTS", 2 * 24)
    assert page.of(whole).report is whole


def test_pictures_are_of_the_first_studies(tmp_path, monkeypatch):
    run = study.write(tmp_path)
    monkeypatch.setattr(page, "MOST_DRAWN", 1)
    report.build(experiments=run.experiments, documents=run.documents, output=run.folder)
    drawn = {path.name.partition(".")[0] for path in (tmp_path / "plots").iterdir()}
    assert drawn == {"dsv4-flash"}
    for name in ("report.md", "report.html"):
        assert "pictures of the first 1 of 2 studies" in (tmp_path / name).read_text()
