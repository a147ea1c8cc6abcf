"""Read the artefacts that a report is made of: exactly the files given, whatever state they are in.

A file that is absent, broken or of another version costs its own facts and a notice, never the
report.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from bringup import artifact
from bringup.artifact import Document
from bringup.load import sweeps

VERSIONS: dict[str, str] = {
    "hardware": "1",
    "metadata": "1",
    "format": "1",
    "engine": "1",
    "reading": "1",
    "plan": "1",
    "weights": "1",
    "server": "1",
    "probe": "1",
    "point": "1",
    "reference": "1",
    "accuracy": "1",
    "kernels": "1",
}
"""The stages whose documents a report reads, and the schema version that it understands."""

POINT_FIELDS = (
    "schema",
    "status",
    "reason",
    "boot",
    "made",
    "workload",
    "gate",
    "repeats",
    "summary",
    "server",
    "void",
)
"""What a report reads of a point."""

MOST_NAMED = 6
"""Files named in a notice."""


SHARED = frozenset({"hardware", "metadata", "format", "engine", "reading"})
"""Stages whose documents belong to many experiments; those of the others are read once."""

Place = tuple[str, str]
"""Stage and subject of a document.

A subject is what the file's place says: the name of a checkpoint, engine or experiment,
``checkpoint--engine`` for a reading, ``""`` for the hardware.
"""


class Artefacts:
    """The documents that there are, each read when it is asked for, and what was wrong with them.

    A large run's documents are more than memory holds at once.
    """

    def __init__(self, files: Iterable[Path], results: Path) -> None:
        """Take ``files``, laid out as docs/design.md §4 says; notices name them as in ``results``.

        A file that is absent is told as such; one that no experiment asks for says nothing.
        """
        self._results = results
        self._files: dict[Place, tuple[int, Path]] = {}
        self._points: dict[str, dict[int, dict[int, tuple[int, Path]]]] = {}
        self._read: dict[Place, Document | None] = {}
        self._notices: list[tuple[int, Document]] = []
        self._absent: list[str] = []
        for number, path in enumerate(files):
            stage, subject = place(path)
            if not path.exists():
                self._absent.append(shown(path, results))
            elif stage == "point":
                level, boot = level_and_boot(path)
                levels = self._points.setdefault(subject, {})
                levels.setdefault(level, {})[boot] = number, path
            else:
                self._files[stage, subject] = number, path

    @property
    def notices(self) -> list[Document]:
        """Return what is wrong with what was asked for so far, in the order of the files."""
        found = [notice for _, notice in sorted(self._notices, key=lambda each: each[0])]
        return [*found, _absent(self._absent)] if self._absent else found

    def get(self, stage: str, subject: str = "") -> Document | None:
        """Return the document of ``stage`` about ``subject``, if there is one to read."""
        where = (stage, subject)
        if where in self._read:
            return self._read[where]
        document = self._readable(stage, *self._files[where]) if where in self._files else None
        if stage in SHARED:
            self._read[where] = document
        return document

    def path(self, stage: str, subject: str = "") -> Path:
        """Return where a document that `get` returned stands."""
        return self._files[stage, subject][1]

    def points(self, experiment: str) -> list[Document]:
        """Return the points of an experiment, lowest concurrency first."""
        found = []
        levels = self._points.get(experiment, {})
        for level in sorted(levels):
            boots = {
                boot: _light(document)
                for boot, (number, path) in levels[level].items()
                if (document := self._readable("point", number, path)) is not None
            }
            if boots:
                found.append(_joined(boots) | {"concurrency": level})
        return found

    def _readable(self, stage: str, number: int, path: Path) -> Document | None:
        """Return the document at ``path`` if this report understands it; else note why not."""
        try:
            document = artifact.read(path)
        except (ValueError, OSError) as error:
            why = str(error).replace(str(path), shown(path, self._results))
            notice = artifact.reason("unreadable", f"{why}; what it says is missing below")
            self._notices.append((number, notice))
            return None
        here, found = f"{stage}/{VERSIONS.get(stage, '?')}", document.get("schema")
        if found != here or not {"status", "reason"} <= document.keys():
            name = shown(path, self._results)
            message = f"{name} is {found!r} where this report reads {here}; it was left out"
            hint = f"make it again: snakemake --cores 1 results/report.md -R results/{name}"
            notice = artifact.reason("other-version", message, hint=hint)
            self._notices.append((number, notice))
            return None
        return document


def _light(document: Document) -> Document:
    """Return a point without what validators found in order, which is half of it."""
    point = {key: document[key] for key in POINT_FIELDS if key in document}
    repeats = [
        {**each, "validators": [v for v in each["validators"] if v.get("verdict") != "ok"]}
        if each.get("validators")
        else each
        for each in point.get("repeats") or []
    ]
    return {**point, "repeats": repeats} if repeats else point


def _joined(boots: dict[int, Document]) -> Document:
    """Return one point of all its boots; ``made`` says of each when and by what."""
    made = [boots[number]["made"] for number in sorted(boots) if boots[number].get("made")]
    return sweeps.joined(boots) | {"made": made}


def place(path: Path) -> tuple[str, str]:
    """Return the stage and the subject that a document's place in ``results/`` stands for."""
    folder = path.parent
    if folder.name == "points":
        return "point", folder.parent.name
    if folder.name == "readings":
        return "reading", path.stem
    if path.stem == "hardware":
        return "hardware", ""
    return path.stem, folder.name


def level_and_boot(path: Path) -> tuple[int, int]:
    """Return the concurrency and the boot that a point's file name tells."""
    level, _, boot = path.stem.partition(".boot")
    return int(level.removeprefix("c")), int(boot or 1)


def shown(path: Path, results: Path) -> str:
    """Return ``path`` as a report in ``results`` names it and links to it."""
    place, folder = str(path), f"{results}/"
    if place.startswith(folder) and "/.." not in place:  # as nearly always, and ten times as fast
        return place[len(folder) :]
    return Path(os.path.relpath(path, results)).as_posix()


def _absent(names: list[str]) -> Document:
    left = len(names) - MOST_NAMED
    more = [f"and {left} more"] if left > 0 else []
    return artifact.reason(
        "unfinished",
        f"{len(names)} of the documents asked for are not there yet: "
        "the run is unfinished or was interrupted",
        evidence=[*names[:MOST_NAMED], *more],
        hint="run the workflow again: it goes on where it stopped",
    )
