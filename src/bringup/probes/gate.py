"""The gate: one verdict over the items of a probe, and over probes taken at different times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bringup import artifact
from bringup.probes.asking import Item

SCHEMA = "probe/1"

Gate = Literal["pass", "degraded", "flaky", "no-answer", "wrong", "error"]

SEVERITY: tuple[Gate, ...] = ("pass", "degraded", "flaky", "no-answer", "wrong", "error")
"""The verdicts, the least bad first; of several phases the worst counts."""

EVIDENCE = 8
"""Items that are shown in a reason."""


@dataclass(frozen=True)
class Thresholds:
    """Where the verdicts begin, as shares of the questions asked.

    From ``pass_share`` right answers on the gate passes, from ``degraded_share`` on the server is
    degraded, below that it is wrong.  Answers that change between right and not right when a
    question is asked again count against ``pass_share``, too.
    """

    pass_share: float = 1.0
    degraded_share: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.degraded_share <= self.pass_share <= 1:
            raise ValueError(
                "probes: 0 < degraded_share <= pass_share <= 1 does not hold for "
                f"{self.degraded_share} and {self.pass_share}"
            )


@dataclass(frozen=True)
class Verdict:
    """A gate, what it counted, and the items that were not right."""

    gate: Gate
    asked: int
    right: int
    message: str
    not_right: tuple[Item, ...]


def gate(items: Sequence[Item], thresholds: Thresholds) -> Verdict:
    """Return the verdict over one asking of the questions.

    A question that was asked several times and answered both ways counts as changed (``flaky``).

    Raises:
        ValueError: there are no items; nothing asked proves nothing.
    """
    if not items:
        raise ValueError("a gate needs at least one question")
    outcomes: Counter[str] = Counter(item.outcome for item in items)
    return Verdict(
        gate=_gate(items, outcomes, thresholds),
        asked=len(items),
        right=outcomes["right"],
        message=_message(outcomes),
        not_right=tuple(item for item in items if item.outcome != "right"),
    )


def across(phases: Mapping[str, Sequence[Item]], thresholds: Thresholds) -> Verdict:
    """Return the verdict over several askings on one boot, such as before, during and after load.

    The worst phase counts; where no phase is worse than flaky, answers that change between the
    phases can make it so.
    """
    verdicts = {phase: gate(items, thresholds) for phase, items in phases.items()}
    worst = max((each.gate for each in verdicts.values()), key=SEVERITY.index)
    items = [item for phase in phases.values() for item in phase]
    if _changes(items, thresholds):
        worst = max(worst, "flaky", key=SEVERITY.index)
    return Verdict(
        gate=worst,
        asked=len(items),
        right=sum(each.right for each in verdicts.values()),
        message="; ".join(f"{phase}: {each.message}" for phase, each in verdicts.items()),
        not_right=tuple(item for each in verdicts.values() for item in each.not_right),
    )


def document(
    experiment: str,
    boot: str,
    suites: Sequence[str],
    items: Sequence[Item],
    thresholds: Thresholds,
) -> artifact.Document:
    """Return probe.json: the gate over ``items`` and every item of it."""
    verdict = gate(items, thresholds)
    status: artifact.Status = "ok"
    if verdict.gate != "pass":
        status = "failed" if verdict.gate == "error" else "wrong"
    return artifact.document(
        SCHEMA,
        status,
        reason(verdict),
        experiment=experiment,
        boot=boot,
        gate=verdict.gate,
        suites=list(suites),
        thresholds=asdict(thresholds),
        asked=verdict.asked,
        right=verdict.right,
        items=[asdict(item) for item in items],
    )


def reason(verdict: Verdict) -> artifact.Document | None:
    """Return why a gate did not pass, with the items that decided it; None where it passed."""
    if verdict.gate == "pass":
        return None
    return artifact.reason(
        f"answers-{verdict.gate}",
        verdict.message,
        evidence=[_line(item) for item in verdict.not_right[:EVIDENCE]],
        hint=HINTS[verdict.gate],
    )


def summary(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as points store it: counts, and the items that were not right."""
    return {
        "verdict": verdict.gate,
        "asked": verdict.asked,
        "right": verdict.right,
        "message": verdict.message,
        "not_right": [asdict(item) for item in verdict.not_right],
    }


HINTS: Mapping[Gate, str] = {
    "degraded": "Compare with a baseline experiment: is it the checkpoint or this backend?",
    "wrong": "Try another backend for the module class that this one runs; speed means nothing.",
    "flaky": "Answers depend on the batch or on chance: try another backend, or fewer at once.",
    "no-answer": "Answers are empty or cut short: raise max_tokens, or switch thinking off.",
    "error": "See server.log at the time of the first error.",
}


def _gate(items: Sequence[Item], outcomes: Counter[str], thresholds: Thresholds) -> Gate:
    asked = len(items)
    share = outcomes["right"] / asked
    if (outcomes["right"] + outcomes["error"]) / asked >= thresholds.pass_share > share:
        return "error"
    if share < thresholds.degraded_share:
        answered = outcomes["right"] + outcomes["error"] + outcomes["no-answer"]
        return "no-answer" if answered / asked >= thresholds.pass_share else "wrong"
    if _changes(items, thresholds):
        return "flaky"
    if share < thresholds.pass_share or outcomes["error"] or outcomes["degenerate"]:
        return "degraded"
    return "pass"


def _changes(items: Sequence[Item], thresholds: Thresholds) -> bool:
    """Whether too many questions were answered right once and not right another time."""
    outcomes: dict[tuple[str, str], set[bool]] = {}
    for item in items:
        outcomes.setdefault((item.suite, item.id), set()).add(item.outcome == "right")
    changed = sum(len(each) == 2 for each in outcomes.values())
    return 1 - changed / len(outcomes) < thresholds.pass_share


def _message(outcomes: Counter[str]) -> str:
    asked = outcomes.total()
    others = ", ".join(
        f"{outcomes[name]} {name}"
        for name in ("wrong", "no-answer", "degenerate", "error")
        if outcomes[name]
    )
    return f"{outcomes['right']} of {asked} right" + (f" ({others})" if others else "")


def _line(item: Item) -> str:
    got = repr(item.got[:80]) if item.got else "nothing"
    said = f" ({item.message})" if item.message else ""
    return f"{item.prompt[-100:]} expected {item.expected[:80]!r}, got {got}: {item.outcome}{said}"
