"""Who is fastest, per level and only among what is right; and each against its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bringup import stats
from bringup.artifact import Document
from bringup.report import differences, text, wording
from bringup.report.cases import Case


@dataclass(frozen=True)
class Contender:
    """What of an experiment says which one it is compared with.

    ``baseline`` is the name of the one that the config says, if it says so.
    """

    name: str
    study: str
    baseline: str | None
    facets: differences.Facets

    @classmethod
    def of(cls, case: Case) -> Contender:
        """Return it from the experiment's documents, which can be let go then."""
        return cls(case.name, case.study, case.entry.get("baseline"), differences.facets(case))


def compare_with_baselines(contenders: Sequence[Contender], rows: Sequence[Document]) -> None:
    """Give every row its baseline, what differs from it, and each point its comparison.

    The baseline is the experiment that the config names, else the nearest of those that stand
    before it in its study and have a ranked point.
    """
    facets = {each.name: each.facets for each in contenders}
    by_name = {row["name"]: row for row in rows}
    earlier: dict[str, differences.Candidates] = {}
    for contender, row in zip(contenders, rows, strict=True):
        candidates = earlier.setdefault(contender.study, differences.Candidates())
        for point in row["points"]:
            point["against"] = None
        row["baseline"] = text.clean(_baseline(contender, candidates, facets))
        if row["baseline"] is not None:
            other = by_name.get(row["baseline"]["name"], {})
            for point in row["points"]:
                point["against"] = _against(point, other.get("points") or [])
        if any(point["unranked"] is None for point in row["points"]):
            candidates.add(contender.name, contender.facets)


def _baseline(
    contender: Contender, candidates: differences.Candidates, facets: dict[str, differences.Facets]
) -> Document | None:
    named, mine = contender.baseline, contender.facets
    chosen = named or candidates.nearest(mine)
    if chosen is None or chosen == contender.name:
        return None
    return {
        "name": chosen,
        "by": "config" if named else "nearest",
        "differences": differences.between(mine, facets[chosen]) if chosen in facets else [],
    }


def _against(point: Document, others: Sequence[Document]) -> Document | None:
    """Return the comparison with the baseline's point of the same level, if both are ranked."""
    other = next((each for each in others if each["concurrency"] == point["concurrency"]), None)
    if other is None or other["unranked"] is not None or point["unranked"] is not None:
        return None
    return compare(point, other)


def compare(point: Document, other: Document) -> Document:
    """Return how one point's throughput compares with another's (see ``stats.Difference``)."""
    found = vars(stats.compare(_measured(other), _measured(point)))
    return {key: round(each, 4) if isinstance(each, float) else each for key, each in found.items()}


def _measured(point: Document) -> list[stats.Measured]:
    return [
        stats.Measured(repeat["boot"], repeat["output_tok_s"])
        for repeat in point["repeats"]
        if repeat["output_tok_s"] and not repeat["void"]
    ]


def rank(members: Sequence[Document], level: int) -> Document:
    """Return the ranking of a study's ranked points at one level, and the winner if there is one.

    ``order`` holds the experiments by output tok/s.  ``winner`` is the first of them only if it
    is shown faster than every other one; ``why`` says in words why no winner is named.
    """
    found = [
        (row["name"], point)
        for row in members
        for point in row["points"]
        if point["concurrency"] == level and point["unranked"] is None
    ]
    found.sort(key=lambda each: -each[1]["output_tok_s"])
    order = [{"experiment": name, "output_tok_s": point["output_tok_s"]} for name, point in found]
    return {"concurrency": level, "order": order, **_winner(found)}


def _winner(found: Sequence[tuple[str, Document]]) -> Document:
    """Return the winner among the ranked points, best first, or why none is named."""
    if not found:
        return {"winner": None, "why": "nothing that is right was measured"}
    (name, best), others = found[0], found[1:]
    if not others:
        return {"winner": None, "why": f"{name} is the only one measured"}
    if any(point["workload"] != best["workload"] for _, point in others):
        return {"winner": None, "why": "the workloads differ"}
    verdicts = {other: compare(best, point)["verdict"] for other, point in others}
    equal = [other for other, verdict in verdicts.items() if verdict != "faster"]
    if not equal:
        return {"winner": name, "why": f"faster than {wording.some(list(verdicts))}"}
    if "insufficient" in verdicts.values():
        return {"winner": None, "why": "too few repeats or boots to call a difference"}
    return {"winner": None, "why": f"{wording.some([name, *equal])} are within noise"}
