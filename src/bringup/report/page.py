"""What of a report a page shows: all of it, unless that is more than a page can hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

from bringup import artifact
from bringup.artifact import Document
from bringup.report.cases import by_study

MOST_EXPERIMENTS, MOST_POINTS = 1000, 6000
"""Of which a page shows tables and sections: with six levels each, 7 MB of HTML."""

MOST_DRAWN = 20
"""Studies with pictures: a fifth of a second and 20 kB for each picture."""

MOST_ROWS = 1000
"""Rows of a table of reasons, warnings or changes."""


@dataclass(frozen=True)
class Page:
    """A report to show.

    ``report`` holds the experiments (and the studies that they belong to) with tables, pictures
    and sections, ``everything`` all of them, for what is counted over all.
    """

    report: Document
    everything: Sequence[Document]

    @property
    def drawn(self) -> dict[str, list[Document]]:
        """Return the studies that have pictures, each with its experiments."""
        return dict(islice(by_study(self.report["experiments"]).items(), MOST_DRAWN))

    @property
    def shown(self) -> frozenset[str]:
        """Return the names of the experiments that have a section, to link to."""
        return frozenset(row["name"] for row in self.report["experiments"])


def of(report: Document) -> Page:
    """Return the page of a report, with a notice of what it leaves out."""
    shown = _bounded(report)
    if len(shown["studies"]) > MOST_DRAWN:
        notice = artifact.reason(
            "not-all",
            f"there are pictures of the first {MOST_DRAWN} of {len(shown['studies']):,} studies",
            hint="name studies in the config: experiments with the same one share their pictures",
        )
        shown = shown | {"notices": [*shown["notices"], notice]}
    return Page(shown, report["experiments"])


def _bounded(report: Document) -> Document:
    """Return the report with as many experiments as a page can hold.

    Where there are more, studies take turns: each gives its experiments that rank highest at some
    level, in turn with those that take part in no ranking, of which each reason comes first.
    """
    levels = {level for study in report["studies"] for level in study["concurrencies"]}
    most = min(MOST_EXPERIMENTS, MOST_POINTS // max(1, len(levels)))
    everything: list[Document] = report["experiments"]
    if len(everything) <= most:
        return report
    rows = {row["name"]: row for row in everything}
    chosen = set(islice(_in_turn(_foremost(study, rows) for study in report["studies"]), most))
    studies = [
        {**study, "experiments": members}
        for study in report["studies"]
        if (members := [name for name in study["experiments"] if name in chosen])
    ]
    notice = artifact.reason(
        "not-all",
        f"this page shows {len(chosen):,} of {len(everything):,} experiments: of each study the "
        "fastest, and some for each reason why others have no rank; sentences and reasons are "
        "about all of them",
        hint="see points.csv, points.jsonl and report.json, which hold all, or narrow the run to "
        "a study: --config study=NAME",
    )
    return report | {
        "notices": [*report["notices"], notice],
        "studies": studies,
        "experiments": [row for row in everything if row["name"] in chosen],
    }


def _foremost(study: Document, rows: dict[str, Document]) -> Iterator[str]:
    """Yield the experiments of a study, those that a reader wants to see most first."""
    places: dict[str, int] = {}
    for ranking in study["rankings"]:
        for place, each in enumerate(ranking["order"]):
            places[each["experiment"]] = min(place, places.get(each["experiment"], place))
    alike: Counter[tuple[str, str]] = Counter()
    others: dict[str, int] = {}
    for name in study["experiments"]:
        if name not in places:
            why = (rows[name]["status"], str((rows[name]["cause"] or {}).get("message")))
            others[name] = alike[why]
            alike[why] += 1
    return _in_turn(
        [sorted(places, key=places.__getitem__), sorted(others, key=others.__getitem__)]
    )


def _in_turn(queues: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the first of each queue, then the second of each, and so on."""
    return (name for turn in zip_longest(*queues) for name in turn if name is not None)
