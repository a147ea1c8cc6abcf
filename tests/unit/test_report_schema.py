"""report.json keeps to its schema, and the run that these tests are made on to the stages' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.report import study

from bringup import report
from bringup.report.documents import place
from documents import schema_of, validator


def nothing_required(schema: Any) -> Any:
    """Return a schema that allows less to be said, but nothing else."""
    if isinstance(schema, dict):
        return {key: nothing_required(each) for key, each in schema.items() if key != "required"}
    return [nothing_required(each) for each in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("stage", ["hardware", "plan", "server", "probe", "point", "kernels"])
def test_the_made_up_run_says_only_what_the_stages_could_have_said(
    stage: str, tmp_path: Path
) -> None:
    check = validator(nothing_required(schema_of(stage)))
    found = 0
    for path in study.write(tmp_path).documents:
        if place(path)[0] == stage and path.exists():
            check.validate(json.loads(path.read_text(encoding="utf-8")))
            found += 1
    assert found


@pytest.mark.parametrize("everything", [True, False])
def test_report_json_is_valid(everything: bool, tmp_path: Path) -> None:
    run = study.write(tmp_path)
    document = report.document(
        experiments=run.experiments,
        documents=run.documents if everything else [],
        output=tmp_path,
    )
    validator(schema_of("report")).validate(document)
