"""``asked.json``: what the last run was asked for, so that a report can be written without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bringup import artifact
from bringup.artifact import Document

SCHEMA = "asked/1"
NAME = "asked.json"


def write(results: Path, experiments: Sequence[Document], documents: Iterable[str]) -> None:
    """Write down the resolved config entries and what a report of them reads.

    Args:
        results: the folder of results.
        experiments: config entries, in order.
        documents: paths as the workflow knows them, all below ``results``.
    """
    places = [Path(path).relative_to(results).as_posix() for path in documents]
    asked = artifact.document(SCHEMA, experiments=list(experiments), documents=places)
    artifact.write(results / NAME, asked)


def read(results: Path) -> tuple[list[Document], list[Path]]:
    """Return the entries, and the paths of the documents.

    Raises:
        OSError: there is none.
        ValueError: it is broken, or of another version.
    """
    asked = artifact.read(results / NAME)
    if asked.get("schema") != SCHEMA:
        raise ValueError(f"{results / NAME} is {asked.get('schema')!r}, not {SCHEMA}: run again")
    return asked["experiments"], [results / place for place in asked["documents"]]
