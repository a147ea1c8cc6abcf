"""What a study found, in sentences computed from its rows: nothing is said that they don't show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from bringup.artifact import STOPS, Document
from bringup.report import wording

MOST_NAMED = 3
"""Experiments named one by one in a sentence or a list of sentences; the tables have them all."""

MOST_DIFFERENCES = 4

RESTLESS = 0.1
"""Largest minus smallest repeat over their mean, from which on it is told.  On a machine that does
nothing else repeats agree within a few percent."""

CLASS_WORDS = {"experts": "its experts", "attention": "attention", "dense": "dense layers"}

CALLED = {
    "ok": "right",
    "wrong": "wrong",
    "failed": "failed",
    "refused": "refused",
    "skipped": "skipped",
    "pending": "without a result yet",
}
"""How an experiment's status reads in a count."""


def answer(
    rows: Sequence[Document], rankings: Sequence[Document], machine: str | None
) -> list[str]:
    """Return the sentences that answer a study's question, the most important first.

    Args:
        rows: its experiments, in the order of the config.
        rankings: its rankings, one for each concurrency level.
        machine: what it ran on, in words, where that is known.
    """
    place = f"On {machine}, " if machine else ""
    if len(rows) > 1 and (same := _all_alike(rows)):
        return [f"{place}{same}" if place else f"A{same[1:]}"]
    first, *others = [*_winners(rankings), _tally(rows)]
    return [
        place + first,
        *others,
        *_undecided(rankings),
        *_alone(rankings),
        *_compared(rows, rankings),
        *_restless(rows),
        *_tempting(rows),
        *_unlike(rows),
        *_fell_back(rows),
        *_not_run(rows),
    ]


def _all_alike(rows: Sequence[Document]) -> str | None:
    """Say what became of all experiments, where it is one thing for one reason."""
    outcomes = {(row["status"], (row["cause"] or {}).get("message")) for row in rows}
    if len(outcomes) > 1:
        return None
    ((status, message),) = outcomes
    if status not in STOPS:
        return None
    reason = str(message or "no reason given").rstrip(".")
    return f"all {len(rows)} experiments {'' if status == 'failed' else 'were '}{status}: {reason}."


def _tally(rows: Sequence[Document]) -> str:
    """Say how many of the experiments are right, and what became of the others."""
    if len(rows) == 1:
        return f"{rows[0]['name']} is {CALLED[rows[0]['status']]}."
    counts = Counter(row["status"] for row in rows)
    right = counts.pop("ok", 0)
    others = [f"{counts[status]} {CALLED[status]}" for status in CALLED if counts[status]]
    rest = f"; {wording.listed(others)}" if others else ""
    return f"{right} of {len(rows)} experiments {'is' if right == 1 else 'are'} right{rest}."


def _winners(rankings: Sequence[Document]) -> Iterator[str]:
    """Say who is fastest at which levels."""
    ranked = [each for each in rankings if len(each["order"]) > 1]
    for winner in dict.fromkeys(each["winner"] for each in ranked if each["winner"]):
        where = [each["concurrency"] for each in ranked if each["winner"] == winner]
        everywhere = "every concurrency measured, " if len(where) == len(ranked) > 1 else ""
        yield f"{winner} is right and the fastest at {everywhere}{wording.levels(where)}."


def _undecided(rankings: Sequence[Document]) -> Iterator[str]:
    """Say at which levels nobody is called the fastest, and why."""
    undecided = [each for each in rankings if len(each["order"]) > 1 and not each["winner"]]
    for why in dict.fromkeys(each["why"] for each in undecided):
        where = [each for each in undecided if each["why"] == why]
        yield (
            f"No winner is named at {wording.levels([each['concurrency'] for each in where])}: "
            f"{why}; the highest figure{'s are' if len(where) > 1 else ' is'} "
            f"{wording.listed([_highest(each) for each in where])}."
        )


def _highest(ranking: Document) -> str:
    best = ranking["order"][0]
    return (
        f"{wording.figure(best['output_tok_s'])} tok/s by {best['experiment']} "
        f"at C = {ranking['concurrency']}"
    )


def _alone(rankings: Sequence[Document]) -> Iterator[str]:
    """Tell the figures of an experiment that is the only one ranked at some levels."""
    alone = [each for each in rankings if len(each["order"]) == 1]
    for name in dict.fromkeys(each["order"][0]["experiment"] for each in alone):
        where = [each for each in alone if each["order"][0]["experiment"] == name]
        figures = [
            f"{wording.figure(each['order'][0]['output_tok_s'])} tok/s at C = {each['concurrency']}"
            for each in where
        ]
        yield f"{name} is the only one that is right and measured: {wording.listed(figures)}."


def _compared(rows: Sequence[Document], rankings: Sequence[Document]) -> Iterator[str]:
    """Compare the winners, what has a baseline in the config, and patches with their baselines."""
    winners = {each["winner"] for each in rankings}
    chosen = [
        row
        for row in rows
        if row["baseline"]
        and any(point["against"] for point in row["points"])
        and (row["baseline"]["by"] == "config" or row["name"] in winners or _only_patches(row))
    ]
    for row in chosen[:MOST_NAMED]:
        yield f"{_effects(row)}; {difference_words(row)}."


def _only_patches(row: Document) -> bool:
    return [each["what"] for each in row["baseline"]["differences"]] == ["patches"]


def _effects(row: Document) -> str:
    """Say what an experiment gains or loses over its baseline at each level."""
    compared = [point for point in row["points"] if point["against"]]
    verdicts = [point["against"]["verdict"].replace("-", " ") for point in compared]
    alike = len(compared) > 1 and len(set(verdicts)) == 1
    parts = []
    for point, verdict in zip(compared, verdicts, strict=True):
        against = point["against"]
        band = wording.interval(against["low"], against["high"])
        effect = " ".join(filter(None, [wording.change(against["effect"]), band]))
        parts.append(f"{effect} at C = {point['concurrency']}{'' if alike else f' ({verdict})'}")
    everywhere = f" ({verdicts[0]} everywhere)" if alike else ""
    return f"{row['name']} against {row['baseline']['name']}: {wording.listed(parts)}{everywhere}"


def difference_words(row: Document) -> str:
    """Say in what an experiment differs from its baseline, and warn where that is not one thing."""
    names = [each["what"] for each in row["baseline"]["differences"]]
    if not names:
        return "nothing that is known differs between them"
    if len(names) == 1:
        return f"they differ in one thing, {names[0]}"
    listed = f"{len(names)} things ({wording.some(names, MOST_DIFFERENCES)})"
    return f"they differ in {listed}, so none of them alone is shown to be the cause"


def _restless(rows: Sequence[Document]) -> Iterator[str]:
    """Warn of figures whose repeats are far apart: the machine may have been busy."""
    found = [
        (point["spread"], f"{row['name']} at C = {point['concurrency']}")
        for row in rows
        for point in row["points"]
        if point["unranked"] is None and (point["spread"] or 0) > RESTLESS
    ]
    if found:
        told = [f"{where} ({100 * spread:.0f} %)" for spread, where in sorted(found, reverse=True)]
        yield (
            f"Repeats of one point lie more than {100 * RESTLESS:.0f} % apart: "
            f"{wording.some(told, MOST_NAMED)}; was the machine busy?"
        )


def _tempting(rows: Sequence[Document]) -> Iterator[str]:
    """Warn of figures that come from wrong answers."""
    for row in [row for row in rows if row["status"] == "wrong"][:MOST_NAMED]:
        right = _wrongness(row)
        measured = [point for point in row["points"] if point["output_tok_s"] is not None]
        if measured:
            best = max(measured, key=lambda point: float(point["output_tok_s"]))
            yield (
                f"{row['name']} starts but is wrong ({right}): its "
                f"{wording.figure(best['output_tok_s'])} tok/s at C = {best['concurrency']} "
                "count for nothing."
            )
        else:
            yield f"{row['name']} starts but is wrong ({right}), so it was not measured."


def _wrongness(row: Document) -> str:
    """Say what shows that an experiment is wrong: answers, or benchmarks below what is wanted."""
    if row["stage"] == "accuracy":
        return str(row["cause"]["message"])
    found = row["correctness"] or {}
    return f"{found.get('right')} of {found.get('asked')} answers were right"


def _unlike(rows: Sequence[Document]) -> Iterator[str]:
    """Name what predicts otherwise than its reference, by more than chance explains."""
    compared = [(row["name"], (row["correctness"] or {}).get("reference")) for row in rows]
    told = [
        f"{name} unlike {found['name']} (mean KL {found['mean_kl']:.2g} nats, the same likeliest "
        f"token at {found['top1']:.1%} of places)"
        for name, found in compared
        if found and found["verdict"] == "differs"
    ]
    if told:
        yield f"By more than chance, predictions differ: {wording.some(told, MOST_NAMED)}."


def _fell_back(rows: Sequence[Document]) -> Iterator[str]:
    """Name what did not run a backend that it was asked to run."""
    told = [
        f"{row['name']} was asked for {backend['asked'] or 'auto'} for {CLASS_WORDS[module]} "
        f"and ran {backend['used']}"
        for row in rows
        for module, backend in row["backends"].items()
        if backend["verdict"] == "fell-back"
    ]
    if told:
        more = [f"{len(told) - MOST_NAMED} more fell back"] if len(told) > MOST_NAMED else []
        yield f"Not what was asked for: {wording.listed(told[:MOST_NAMED] + more)}."


def _not_run(rows: Sequence[Document]) -> Iterator[str]:
    """Give the reasons for what failed, was refused or skipped, equal reasons once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] in ("failed", "refused", "skipped"):
            message = str((row["cause"] or {}).get("message") or "no reason given")
            # A point that failed leaves the figures of lower levels standing, so its level matters.
            place = row["stage"].removeprefix("point ") if row["stage"].startswith("point ") else ""
            verdict = f"{row['status']} at {place}" if place else row["status"]
            reasons.setdefault((verdict, message), []).append(row["name"])
    for (verdict, message), names in list(reasons.items())[:MOST_NAMED]:
        verb = "" if verdict.startswith("failed") else "was " if len(names) == 1 else "were "
        yield f"{wording.some(names, MOST_NAMED)} {verb}{verdict}: {message.rstrip('.')}."
    if len(reasons) > MOST_NAMED:
        yield f"{len(reasons) - MOST_NAMED} more reasons stand in the table of what did not run."
