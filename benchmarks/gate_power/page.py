"""docs/gate-power.json and .md, from the results of ``run.py``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]

DAMAGED = 0.01
"""A model is damaged that answers more than this share of held-out questions otherwise."""
CONFIDENCE = 0.95
NOT_HERE = {
    "clamp removed": "experts of this architecture have no clamp",
    "router bias dropped": "its routers have no bias",
}


def document(results: Sequence[Json], *, weights: str, revision: str, made: str) -> Json:
    """Return the figures over all results so far.

    Args:
        results: gate runs, of damaged models and of the clean one.
        weights: SHA-256 of the clean model's weights.
        revision: the workflow's commit.
        made: when, as documents write it.
    """
    clean = [each for each in results if each["case"] == "clean"]
    cases = [each for each in results if each["case"] != "clean"]
    damaged = [each for each in cases if each["changed_share"] > DAMAGED]
    alarms = sum(caught(each) for each in clean)
    return {
        "date": made[:10],
        "revision": revision,
        "weights_sha256": weights,
        "damaged_means_changed_share_above": DAMAGED,
        "cases": len(cases),
        "damaged_cases": len(damaged),
        "caught_share": share(map(caught, damaged)),
        "caught_share_lower": lower_bound(sum(map(caught, damaged)), len(damaged)),
        "single_question_caught_share": share(not each["single_question"] for each in damaged),
        "caught_share_by_probes": share(each["probes"] != "pass" for each in damaged),
        "caught_share_by_reference": share(bool(each["reference"]) for each in damaged),
        "clean_runs": len(clean),
        "clean_boots": len({each["boot"] for each in clean}),
        "false_alarms": alarms,
        "false_alarm_share": alarms / len(clean) if clean else None,
        "false_alarm_share_upper": upper_bound(alarms, len(clean)),
        "false_alarms_by_probes": sum(each["probes"] != "pass" for each in clean),
        "false_alarms_by_reference": sum(bool(each["reference"]) for each in clean),
        "gate_seconds": _middle([each["seconds"] for each in clean]),
        "not_applicable": NOT_HERE,
        "kinds": list(_kinds(cases)),
    }


def caught(result: Mapping[str, Any]) -> bool:
    """Tell whether the gate objected to a run: an answer, or the predictions."""
    return result["probes"] != "pass" or bool(result["reference"])


def share(hits: Iterable[bool]) -> float | None:
    """Return the share of true values, None of none."""
    values = list(hits)
    return round(sum(values) / len(values), 4) if values else None


def upper_bound(hits: int, of: int) -> float | None:
    """Return the one-sided Clopper-Pearson upper bound of a share at 95 %.

    The share at which so few hits or fewer would be seen in one case of twenty only.
    """
    if hits >= of:
        return 1.0 if of else None
    low, high = hits / of, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(hits, of, middle) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return round(high, 5)


def lower_bound(hits: int, of: int) -> float | None:
    """Return the one-sided Clopper-Pearson lower bound of a share at 95 %."""
    above = upper_bound(of - hits, of)
    return None if above is None else round(1 - above, 5)


def _at_most(hits: int, of: int, chance: float) -> float:
    """Return the probability of at most ``hits`` in ``of`` tries."""
    return math.fsum(
        math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(hits + 1)
    )


def _kinds(cases: Sequence[Json]) -> Iterable[Json]:
    """Yield one row for each kind and strength, its placements together."""
    rows: dict[tuple[str, str], list[Json]] = {}
    for case in cases:
        rows.setdefault((case["kind"], case["strength"]), []).append(case)
    for (kind, strength), placed in sorted(rows.items()):
        yield {
            "kind": kind,
            "strength": strength,
            "cases": len(placed),
            "caught": sum(map(caught, placed)),
            "by_probes": sum(each["probes"] != "pass" for each in placed),
            "by_reference": sum(bool(each["reference"]) for each in placed),
            "by_single_question": sum(not each["single_question"] for each in placed),
            "changed_share": [each["changed_share"] for each in placed],
            "kl": [each["kl"] for each in placed],
        }


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def write(document: Json, folder: Path) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (folder / "gate-power.json").write_text(text, encoding="utf-8")
    (folder / "gate-power.md").write_text(page(document), encoding="utf-8")


def page(it: Json) -> str:
    """Return the document as Markdown."""
    lines = [
        "# What the gate catches",
        "",
        "Written by `benchmarks/gate_power/run.py`; do not edit. The small arithmetic checkpoint,",
        "damaged in many ways, served by real SGLang on a CPU. Faults of quantized kernels are put",
        "into weights that were quantized and dequantized again, since a CPU serves bf16 only: the",
        "file holds what the faulty kernel would have multiplied by. *Changed*: the share of",
        "held-out questions with another greedy answer than the clean model's; *KL*: of its",
        "predictions on held-out texts, in nats. Neither uses a question of the gate.",
        "",
        f"{it['date']}, revision {it['revision'][:12]}, weights {it['weights_sha256'][:12]}.",
        "",
        "| | |",
        "|---|---|",
        f"| damaged models (more than {it['damaged_means_changed_share_above']:.0%} of answers "
        f"changed) | {it['damaged_cases']} of {it['cases']} |",
        f"| of these caught | **{_percent(it['caught_share'])}** "
        f"(at least {_percent(it['caught_share_lower'])}, 95 %) |",
        f"| … by the questions alone | {_percent(it['caught_share_by_probes'])} |",
        f"| … by the comparison with the clean model's predictions alone | "
        f"{_percent(it['caught_share_by_reference'])} |",
        f"| … by one question (17*23), as asked by hand | "
        f"{_percent(it['single_question_caught_share'])} |",
        f"| false alarms | **{it['false_alarms']} of {it['clean_runs']}** runs of the clean model "
        f"on {it['clean_boots']} boots (at most {_percent(it['false_alarm_share_upper'])}, 95 %) |",
        f"| … by the questions, by the predictions | {it['false_alarms_by_probes']}, "
        f"{it['false_alarms_by_reference']} |",
        f"| seconds for a gate | {it['gate_seconds']} |",
        "",
        "| fault | strength | caught | questions | predictions | 17*23 | changed | KL |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in it["kinds"]:
        of = f"/{row['cases']}"
        changed = ", ".join(_percent(each) for each in row["changed_share"])
        kl = ", ".join("no numbers" if each is None else f"{each:.2g}" for each in row["kl"])
        lines.append(
            f"| {row['kind']} | {row['strength']} | {row['caught']}{of} | {row['by_probes']}{of} | "
            f"{row['by_reference']}{of} | {row['by_single_question']}{of} | {changed} | {kl} |"
        )
    lines += [f"| {kind} | n/a: {why} | | | | | | |" for kind, why in it["not_applicable"].items()]
    return "\n".join(lines) + "\n"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
