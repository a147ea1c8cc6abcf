"""Read the artefacts that a report is made of: exactly the files given, whatever state they are in.

A file that is absent, broken or of another version costs its own facts and a notice, never the
report.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
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
"""What is kept of a point: thousands of them are in memory at once."""


MOST_NAMED = 6
"""Files named in a notice."""


@dataclass
class Artefacts:
    """The documents that could be read, by stage and subject, and what was wrong with the rest.

    A subject is what the file's place says: the name of a checkpoint, engine or experiment,
    ``checkpoint--engine`` for a reading, ``""`` for the hardware.
    """

    documents: dict[tuple[str, str], Document] = field(default_factory=dict)
    points: dict[str, list[Document]] = field(default_factory=dict)
    paths: dict[tuple[str, str], Path] = field(default_factory=dict)
    notices: list[Document] = field(default_factory=list)

    def get(self, stage: str, subject: str = "") -> Document | None:
        """Return the document of ``stage`` about ``subject``, if there is one to read."""
        return self.documents.get((stage, subject))


def collect(files: Iterable[Path], results: Path) -> Artefacts:
    """Read ``files``, laid out as docs/design.md §4 says; notices name them as in ``results``."""
    found = Artefacts()
    absent: list[Path] = []
    boots: dict[str, dict[int, dict[int, Document]]] = {}
    for path in files:
        stage, subject = place(path)
        if not path.exists():
            absent.append(path)
            continue
        document = _readable(path, stage, shown(path, results), found.notices)
        if document is None:
            continue
        if stage == "point":
            kept = _light({key: document[key] for key in POINT_FIELDS if key in document})
            level, boot = level_and_boot(path)
            boots.setdefault(subject, {}).setdefault(level, {})[boot] = kept
        else:
            found.documents[stage, subject] = document
            found.paths[stage, subject] = path
    if absent:
        found.notices.append(_absent([shown(path, results) for path in absent]))
    for subject, measured in boots.items():
        found.points[subject] = [
            _joined(measured[level]) | {"concurrency": level} for level in sorted(measured)
        ]
    return found


def _light(point: Document) -> Document:
    """Return a point without what validators found in order, which is half of it."""
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
    return Path(os.path.relpath(path, results)).as_posix()


def _readable(path: Path, stage: str, name: str, notices: list[Document]) -> Document | None:
    """Return the document at ``path`` if this report understands it; else say why not."""
    try:
        document = artifact.read(path)
    except (ValueError, OSError) as error:
        why = str(error).replace(str(path), name)
        notices.append(artifact.reason("unreadable", f"{why}; what it says is missing below"))
        return None
    here, found = f"{stage}/{VERSIONS.get(stage, '?')}", document.get("schema")
    if found != here or not {"status", "reason"} <= document.keys():
        message = f"{name} is {found!r} where this report reads {here}; it was left out"
        hint = f"make it again: snakemake --cores 1 results/report.md -R results/{name}"
        notices.append(artifact.reason("other-version", message, hint=hint))
        return None
    return document


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
