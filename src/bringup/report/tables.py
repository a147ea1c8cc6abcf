"""Tables as cells that Markdown and HTML both show, and how every verdict looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from bringup.report import text, wording

Tone = Literal["", "good", "bad", "warn", "quiet"]

TONES: dict[str, Tone] = {
    "ok": "good",
    "failed": "bad",
    "refused": "quiet",
    "wrong": "bad",
    "skipped": "quiet",
    "void": "warn",
    "pending": "quiet",
    "pass": "good",
    "degraded": "bad",
    "flaky": "bad",
    "no-answer": "bad",
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
    """One cell: what it says, and how.

    ``note`` is a verdict on the text, ``tone`` is the note's, else the text's.  With ``link`` the
    text is the name of an experiment, and leads to it.
    """

    text: str
    tone: Tone = ""
    note: str = ""
    struck: bool = False
    code: bool = False
    link: bool = False


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

    def html(self, class_: str = "cards") -> Markup:
        """Return the table in HTML; ``class_`` says how it looks (``cards``: as such on a phone).

        Written by hand, not by a template: a large report has 100,000 cells.
        """
        rows = [
            [
                f"<th{self._class(at)}>{escape(text.plain(each))}"
                for at, each in enumerate(self.headings)
            ]
        ]
        rows += [
            [f"<td{self._class(at)}>{_html_cell(cell)}" for at, cell in enumerate(row)]
            for row in self.rows
        ]
        head, *body = (f"<tr>{''.join(row)}</tr>" for row in rows)
        return Markup(
            f'<div class="scroll"><table class="{class_}">\n<thead>{head}</thead>\n<tbody>\n'
            + "\n".join(body)
            + "\n</tbody></table></div>"
        )

    def _class(self, column: int) -> str:
        return " class=n" if column in self.numeric else ""

    def _columns(self) -> range:
        return range(len(self.headings))

    def _padded(self, row: Sequence[str], widths: Sequence[int]) -> list[str]:
        return [
            cell.rjust(width) if column in self.numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]


def cell_html(cell: Cell) -> Markup:
    """Return what stands in a cell, in HTML."""
    return Markup(_html_cell(cell))


def _html_cell(cell: Cell) -> str:
    shown = str(escape(text.plain(cell.text)))
    if cell.code:
        shown = f"<code>{shown}</code>"
    elif cell.link:
        shown = f'<a href="#experiment-{text.slug(cell.text)}">{shown}</a>'
    if cell.struck:
        shown = f"<s>{shown}</s>"
    elif cell.tone and not cell.note:
        shown = f"<span class={cell.tone}>{shown}</span>"
    if cell.note:
        tone = f" class={cell.tone}" if cell.tone else ""
        shown += f"<small{tone}>{escape(text.plain(cell.note))}</small>"
    return shown


def _markdown_cell(cell: Cell) -> str:
    if cell.link:
        shown = text.reference(cell.text)
    else:
        shown = text.code(cell.text) if cell.code else text.markdown(cell.text)
    if cell.struck and cell.text != wording.NOTHING:
        shown = f"~~{shown}~~"
    return f"{shown} ({text.markdown(cell.note)})" if cell.note else shown
