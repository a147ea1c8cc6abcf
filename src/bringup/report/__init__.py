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
from bringup.report import compose, history, page, plots, points, render, text
from bringup.report.documents import Artefacts

__all__ = ["build", "document"]


def document(
    *,
    experiments: Sequence[Document],
    documents: Iterable[Path],
    output: Path,
    remember: bool = True,
) -> Document:
    """Return the report as data; arguments as for `build`."""
    report = compose.compose(experiments, Artefacts(documents, output), output)
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
    shown = page.of(report)
    pictures = {
        name: plots.draw(name, text.slug(name), members) for name, members in shown.drawn.items()
    }
    shutil.rmtree(output / "plots", ignore_errors=True)  # of studies that are gone
    for picture in (each for drawn in pictures.values() for each in drawn):
        artifact.write_text(output / "plots" / f"{picture.name}.svg", picture.svg)
    with artifact.writing(output / "report.json") as file:
        file.writelines(_as_json(report))
    points.write(report, output)
    artifact.write_text(output / "report.md", render.markdown(shown, pictures))
    artifact.write_text(output / "report.html", render.html(shown, pictures))


def _as_json(report: Document) -> Iterator[str]:
    """Yield the report as JSON in pieces: all at once it would be in memory a second time."""
    before = "{"
    for key, value in report.items():
        yield f"{before}{json.dumps(key)}: "
        before = ", "
        if key == "experiments":
            yield "["
            for number, row in enumerate(value):
                yield (", " if number else "") + json.dumps(row, ensure_ascii=False)
            yield "]"
        else:
            yield json.dumps(value, ensure_ascii=False)
    yield "}\n"
