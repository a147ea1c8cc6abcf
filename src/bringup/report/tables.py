"""The tables of the report, as cells that Markdown and HTML both show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bringup.artifact import Document
from bringup.report import text, wording

Tone = Literal["", "good", "bad", "warn", "quiet"]

TONES: dict[str, Tone] = {
    "ok": "good",
    "failed": "bad",
    "refused": "quiet",
    "wrong": "bad",
    "skipped": "quiet",
    "pending": "quiet",
    "pass": "good",
    "degraded": "bad",
    "flaky": "bad",
    "error": "bad",
    "confirmed": "good",
    "fell-back": "warn",
    "unverified": "quiet",
    "faster": "good",
    "slower": "bad",
    "within-noise": "quiet",
    "insufficient": "quiet",
}
"""What each verdict is to the reader; colour only ever repeats what the word says."""


@dataclass(frozen=True)
class Cell:
    """One cell: what it says, and how; ``link`` is the name of an experiment to go to."""

    text: str
    tone: Tone = ""
    struck: bool = False
    code: bool = False
    link: str | None = None


@dataclass(frozen=True)
class Table:
    """Headings and rows; headings in ``numeric`` stand over numbers."""

    headings: list[str]
    rows: list[list[Cell]]
    numeric: frozenset[int] = frozenset()

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown, columns padded so that a terminal shows it too."""
        shown = [[text.markdown(each) for each in self.headings]]
        shown += [[_markdown_cell(cell) for cell in row] for row in self.rows]
        widths = [max(3, *(len(row[column]) for row in shown)) for column in self._columns()]
        ruler = [
            "-" * (width - 1) + ":" if column in self.numeric else "-" * width
            for column, width in enumerate(widths)
        ]
        lines = [shown[0], ruler, *shown[1:]]
        return "\n".join("| " + " | ".join(self._padded(row, widths)) + " |" for row in lines)

    def _columns(self) -> range:
        return range(len(self.headings))

    def _padded(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        return [
            cell.rjust(width) if column in self.numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]


def _markdown_cell(cell: Cell) -> str:
    if cell.link is not None:
        shown = text.link(cell.text, f"#{text.heading_anchor(text.plain(cell.link))}")
    else:
        shown = text.code(cell.text) if cell.code else text.markdown(cell.text)
    return f"~~{shown}~~" if cell.struck and cell.text != wording.NOTHING else shown


def overview(members: Sequence[Document]) -> Table:
    """Return experiments × status, formats, backend and correctness."""
    return Table(
        ["experiment", "status", "experts / attention", "backend of the experts", "right"],
        [
            [
                Cell(row["name"], link=row["name"]),
                Cell(row["status"], TONES.get(row["status"], "")),
                Cell(formats(row)),
                backend(row),
                right(row),
            ]
            for row in members
        ],
    )


def formats(row: Document) -> str:
    """Return the formats of experts and attention: ``nvfp4 / fp8-block``."""
    known = row["formats"]
    if not known:
        return wording.NOTHING
    experts = known.get("experts", known.get("dense_mlp"))
    attention = known.get("attention")
    return " / ".join(each or wording.NOTHING for each in (experts, attention))


def backend(row: Document) -> Cell:
    """Return asked → resolved → used, equal neighbours named once, and the verdict."""
    experts = row["backends"].get("experts")
    if experts is None:
        return Cell(wording.NOTHING)
    steps = [str(experts[key]) for key in ("asked", "resolved", "used") if experts[key]]
    distinct = [step for index, step in enumerate(steps) if index == 0 or step != steps[index - 1]]
    path = " → ".join(distinct) or "auto"
    return Cell(f"{path} ({experts['verdict']})", TONES.get(experts["verdict"], ""))


def right(row: Document) -> Cell:
    """Return how many answers were right of how many asked, and the gate unless it passed."""
    found = row["correctness"]
    if found is None or found["asked"] is None:
        return Cell(wording.NOTHING, "quiet")
    counted = f"{found['right']}/{found['asked']}"
    gate = str(found["gate"])
    return Cell(counted if gate == "pass" else f"{counted} {gate}", TONES.get(gate, ""))


def measures(members: Sequence[Document], levels: Sequence[int], names: Sequence[str]) -> Table:
    """Return experiments × levels of one or more measures, those that no ranking counts struck."""
    return Table(
        ["experiment", *(f"C = {level}" for level in levels)],
        [
            [
                Cell(row["name"], link=row["name"]),
                *(_figures(row, level, names) for level in levels),
            ]
            for row in members
            if row["points"]
        ],
        frozenset(range(1, len(levels) + 1)),
    )


def _figures(row: Document, level: int, names: Sequence[str]) -> Cell:
    point = point_at(row, level)
    if point is None or all(point[name] is None for name in names):
        return Cell(wording.NOTHING, "quiet")
    shown = " / ".join(wording.figure(point[name]) for name in names)
    return Cell(shown, struck=point["unranked"] is not None)


def point_at(row: Document, level: int) -> Document | None:
    """Return an experiment's point at a level."""
    return next((point for point in row["points"] if point["concurrency"] == level), None)


def against_baseline(members: Sequence[Document], levels: Sequence[int]) -> Table:
    """Return experiments × levels of throughput against each one's own baseline."""
    compared = [row for row in members if any(point["against"] for point in row["points"])]
    return Table(
        ["experiment", "baseline", *(f"C = {level}" for level in levels)],
        [
            [
                Cell(row["name"], link=row["name"]),
                Cell(row["baseline"]["name"], link=row["baseline"]["name"]),
                *(_against(point_at(row, level)) for level in levels),
            ]
            for row in compared
        ],
        frozenset(range(2, len(levels) + 2)),
    )


def _against(point: Document | None) -> Cell:
    against = point and point["against"]
    if not against:
        return Cell(wording.NOTHING, "quiet")
    return Cell(compared(against), TONES.get(against["verdict"], ""))


def compared(against: Document) -> str:
    """Return a comparison in words: ``+24 % [+19, +29] faster``."""
    band = wording.interval(against["low"], against["high"])
    words = [wording.change(against["effect"]), band, against["verdict"].replace("-", " ")]
    return " ".join(each for each in words if each)


def problems(rows: Sequence[Document]) -> Table:
    """Return what failed, was refused or is wrong, with its first cause and what to try."""
    return Table(
        ["experiment", "status", "at", "why", "what to try"],
        [
            [
                Cell(row["name"], link=row["name"]),
                Cell(row["status"], TONES.get(row["status"], "")),
                Cell(row["stage"]),
                Cell((row["cause"] or {}).get("message") or "no reason given"),
                Cell((row["cause"] or {}).get("hint") or wording.NOTHING),
            ]
            for row in rows
        ],
    )


def flags(row: Document) -> Table:
    """Return an experiment's flags with who set them and why."""
    return Table(
        ["flag", "value", "set by", "why"],
        [
            [
                Cell(str(flag["flag"]), code=True),
                Cell(_value(flag.get("value")), code=True),
                Cell(str(flag.get("by") or "")),
                Cell(str(flag.get("why") or "")),
            ]
            for flag in row["flags"]
        ],
    )


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
