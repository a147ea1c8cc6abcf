"""The report: what was asked, what is true, what to do, from the artefacts of a run.

``build`` reads exactly the documents that it is given and writes the same report twice for the
same documents: every time in it comes from them, none from the clock.
"""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bringup import artifact
from bringup.artifact import Document
from bringup.report import compose, history, plots, points, render, text
from bringup.report.documents import collect

__all__ = ["build", "document"]


def document(
    *,
    experiments: Sequence[Document],
    documents: Iterable[Path],
    output: Path,
    remember: bool = True,
) -> Document:
    """Return the report as data; arguments as for `build`."""
    report: Document = text.clean(compose.compose(experiments, collect(documents, output), output))
    changes = history.update(output / "history.jsonl", report["experiments"], remember=remember)
    return report | {"changes": changes}


def build(
    *,
    experiments: Sequence[Document],
    documents: Iterable[Path],
    output: Path,
    remember: bool = True,
) -> Document:
    """Write the report of ``experiments`` into ``output``, and return it as data.

    Writes ``report.md``, ``report.html``, ``report.json``, ``points.csv``, ``points.jsonl`` and
    ``plots/*.svg``.

    Args:
        experiments: resolved config entries (``name``, ``study``, ``checkpoint``, ``engine``,
            ``server``, ``env``, ``sweep``, ``baseline`` where named), in the order of the config.
        documents: the artefacts that the report may read, where docs/design.md §4 puts them.
            One that is absent, broken or of another version is told in the report.
        output: the folder to write to; links in the report are relative to it, and in its
            ``history.jsonl`` stands the previous report, with which this one is compared.
        remember: whether the next report is to be compared with this one.
    """
    with _no_collections():
        report = document(
            experiments=experiments, documents=documents, output=output, remember=remember
        )
        _write(report, output)
    return report


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Let Python look for garbage later: among a million values of a large report there is none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _write(report: Document, output: Path) -> None:
    """Write the report in all its forms."""
    pictures = {
        study["name"]: plots.draw(study["name"], text.slug(study["name"]), _members(report, study))
        for study in report["studies"]
    }
    shutil.rmtree(output / "plots", ignore_errors=True)  # of studies that are gone
    for picture in (each for drawn in pictures.values() for each in drawn):
        artifact.write_text(output / "plots" / f"{picture.name}.svg", picture.svg)
    artifact.write_text(output / "report.json", json.dumps(report, ensure_ascii=False) + "\n")
    artifact.write_text(output / "points.csv", points.csv(report))
    artifact.write_text(output / "points.jsonl", points.jsonl(report))
    artifact.write_text(output / "report.md", render.markdown(report, pictures))
    artifact.write_text(output / "report.html", render.html(report, pictures))


def _members(report: Document, study: Document) -> list[Document]:
    """Return the experiments of a study."""
    return [row for row in report["experiments"] if row["study"] == study["name"]]
