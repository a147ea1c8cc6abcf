"""Whatever is missing in a document costs its own facts, never the report."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.report import study

from bringup.report import compose, page, points, provenance, render
from bringup.report.documents import Artefacts

NAME = "nvfp4-marlin"
OWN = ("plan", "weights", "server", "probe", "kernels", "points/c1", "points/c8")
OTHERS = (
    "hardware",
    "checkpoints/nvfp4/metadata",
    "checkpoints/nvfp4/format",
    "engines/june/engine",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[study.Run]:
    """A run with one experiment, all of whose documents are there."""
    run = study.write(tmp_path_factory.mktemp("gaps"))
    places = [*OTHERS, *(f"experiments/{NAME}/{stage}" for stage in OWN)]
    run.documents = [run.folder / f"{place}.json" for place in places]
    run.experiments = [entry for entry in run.experiments if entry["name"] == NAME]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "revision", lambda: None)
        yield run


def report(run: study.Run) -> None:
    """Compose the report, and lay it out as Markdown, CSV and JSON Lines; pictures are left out."""
    artefacts = Artefacts(run.documents, run.folder)
    document = compose.compose(run.experiments, artefacts, run.folder)
    document["changes"] = {"previous": False, "rows": []}
    render.markdown(page.of(document), {each["name"]: [] for each in document["studies"]})
    points.write(document, run.folder)


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the values of a document stand; of a list, those of its first item."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*above, key)
            yield from places(item, (*above, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*above, 0))


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("number", range(len(OTHERS) + len(OWN)))
def test_a_missing_value_is_not_the_end_of_the_report(
    run: study.Run, number: int, gone: bool
) -> None:
    path: Path = run.documents[number]
    whole = json.loads(path.read_text(encoding="utf-8"))
    try:
        for place in places(whole):
            if place in (("schema",), ("status",), ("reason",)):
                continue  # without its head no document is read
            document = copy.deepcopy(whole)
            around = document
            for key in place[:-1]:
                around = around[key]
            if gone:
                del around[place[-1]]
            else:
                around[place[-1]] = None
            path.write_text(json.dumps(document), encoding="utf-8")
            try:
                report(run)
            except Exception as error:
                raise AssertionError(f"{path.name} without {place}") from error
    finally:
        path.write_text(json.dumps(whole), encoding="utf-8")
