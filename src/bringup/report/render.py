"""Write the report document as Markdown and as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from bringup.artifact import Document
from bringup.report import tables, text, views, wording
from bringup.report.cases import by_study
from bringup.report.page import MOST_ROWS, Page
from bringup.report.plots import Plot

MOST_ITEMS = 20
"""Questions not answered rightly that are shown of one experiment; its probe.json has them all."""

Pictures = Mapping[str, Sequence[Plot]]


def markdown(page: Page, pictures: Pictures) -> str:
    """Return the page as GitHub's Markdown."""
    environment = _environment(autoescape=False)
    environment.filters |= {
        "md": text.markdown,
        "sentence": text.sentence,
        "code": text.code,
        "fenced": text.fenced,
        "link": text.link,
        "reference": text.reference,
    }
    written = environment.get_template("report.md.j2").render(
        _context(page, pictures),
        references=text.references(row["name"] for row in page.report["experiments"]),
    )
    return written.rstrip() + "\n"


def html(page: Page, pictures: Pictures) -> str:
    """Return the page as one file of HTML: no other file, no network, no script but its own."""
    environment = _environment(autoescape=True)
    environment.filters |= {"plain": text.plain, "slug": text.slug, "together": _together}
    script = _template_text("report.js")
    return environment.get_template("report.html.j2").render(
        _context(page, pictures),
        style=_template_text("report.css"),
        script=script,
        script_hash=_script_hash(script),
        statuses=list(dict.fromkeys(row["status"] for row in page.report["experiments"])),
        sortings=_sortings(_levels(page.report)),
        figures=_figures,
        cell=tables.cell_html,
    )


def _together(sentence: str) -> str:
    """Return a sentence in which ``C = 8`` is not torn apart at the end of a line."""
    return sentence.replace("C = ", "C\u00a0=\u00a0")


def _template_text(name: str) -> str:
    return (resources.files("bringup.report") / "templates" / name).read_text(encoding="utf-8")


def _script_hash(script: str) -> str:
    """Return what a Content-Security-Policy calls the page's one script."""
    digest = hashlib.sha256(f"\n{script}\n".encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _levels(report: Document) -> list[int]:
    return sorted({level for study in report["studies"] for level in study["concurrencies"]})


COLUMNS = {
    "name": "name",
    "status": "status",
    "format": "format",
    "backend": "backend",
    "right": "right answers",
}
FIGURES = {"output_tok_s": "output tok/s", "ttft_ms_p50": "TTFT", "tpot_ms_p50": "TPOT"}
"""What the main table is sorted by besides its columns, in the order of `_figures`."""


def _sortings(levels: Sequence[int]) -> list[tuple[str, str]]:
    """Return what the main table can be sorted by, each key with its label."""
    figures = [
        (f"{name}-{level}", f"{label} at C = {level}")
        for name, label in FIGURES.items()
        for level in levels
    ]
    return [*COLUMNS.items(), *figures]


def _figures(row: Document) -> str:
    """Return what the page's script sorts a row by: ``C:tok/s,TTFT,TPOT`` of what is ranked."""
    return " ".join(
        f"{point['concurrency']}:" + ",".join(_key(point[name]) for name in FIGURES)
        for point in row["points"]
        if point["unranked"] is None
    )


def _key(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


@cache
def _environment(*, autoescape: bool) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("bringup.report"),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _context(page: Page, pictures: Pictures) -> dict[str, Any]:
    report = page.report
    return {
        "report": report,
        "everything": page.everything,
        "shown": page.shown,
        "pictures": {study["name"]: pictures.get(study["name"], ()) for study in report["studies"]},
        "members": by_study(report["experiments"]),
        "views": views,
        "TONES": tables.TONES,
        "wording": wording,
        "command": command,
        "rerun": rerun,
        "levels": _levels(report),
        "winners": {
            (ranking["winner"], ranking["concurrency"])
            for study in report["studies"]
            for ranking in study["rankings"]
        },
        "most_items": MOST_ITEMS,
        "most_rows": MOST_ROWS,
    }


def command(row: Document) -> str:
    """Return the experiment's command line to copy, one flag a line."""
    lines = [" ".join(f"{name}={_value(value)}" for name, value in sorted(row["env"].items()))]
    for word in row["command"]:
        if word.startswith("--"):
            lines.append(_word(word))
        else:
            lines[-1] += f" {_word(word)}"
    return " \\\n  ".join(line.strip() for line in lines)


def _value(value: object) -> str:
    """Return an environment variable's value; a secret stands in a variable of the caller's."""
    if isinstance(value, Mapping):
        return f'"${value.get("secret")}"'
    return _word(value)


def _word(value: object) -> str:
    return shlex.quote(text.plain(value, longest=4000))


def rerun(row: Document) -> str | None:
    """Return the command that measures one experiment again, once it has a plan.

    Deleting its files would not: Snakemake makes no intermediate again while the report is newer.
    """
    places = {link["what"]: link["path"] for link in row["links"]}
    place = places.get("server") or places.get("plan")
    if place is None:
        return None
    return f"snakemake --cores 1 results/report.md -R {_word(f'results/{place}')}"
