"""The tables of the report: which rows, which columns, in what words."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import replace

from bringup.artifact import Document
from bringup.report import wording
from bringup.report.cases import CLASSES, JOULES, PHASES
from bringup.report.provenance import NOT_MADE
from bringup.report.tables import TONES, Cell, Table

MOST_DIFFERENCES, MOST_NAMED = 5, 6


def overview(members: Sequence[Document]) -> Table:
    """Return experiments × status, formats, backend and correctness."""
    return Table(
        ["experiment", "status", "experts / attention", "backend", "right"],
        [
            [
                Cell(row["name"], link=True),
                Cell(row["status"], TONES.get(row["status"], "")),
                Cell(formats(row)),
                backend(row, main_module(row)),
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


def main_module(row: Document) -> str:
    """Return the module class whose backend stands for an experiment: experts, if it has any."""
    return "experts" if "experts" in row["formats"] or not row["formats"] else "dense"


def backend(row: Document, module: str) -> Cell:
    """Return asked → resolved → used, equal neighbours named once, and once it ran the verdict."""
    found = row["backends"].get(module)
    if found is None:
        return Cell(wording.NOTHING, "quiet")
    steps = [str(found[key]) for key in ("asked", "resolved", "used") if found[key]]
    distinct = [step for index, step in enumerate(steps) if index == 0 or step != steps[index - 1]]
    verdict = "" if row["boot"] is None else str(found["verdict"])
    return Cell(" → ".join(distinct) or "auto", TONES.get(verdict, ""), verdict)


def backends(rows: Sequence[Document]) -> Table:
    """Return asked, resolved and used backends of every module class, of what has run."""
    return Table(
        ["experiment", *CLASSES],
        [
            [Cell(row["name"], link=True), *(backend(row, name) for name in CLASSES)]
            for row in rows
            if row["boot"] is not None
        ],
    )


def right(row: Document) -> Cell:
    """Return how many answers were right of how many asked, and the gate unless it passed."""
    found = row["correctness"]
    if found is None or found["asked"] is None:
        return Cell(wording.NOTHING, "quiet")
    counted = f"{found['right']}/{found['asked']}"
    gate = str(found["gate"])
    return Cell(counted, TONES.get(gate, ""), "" if gate == "pass" else gate)


def measures(
    members: Sequence[Document],
    levels: Sequence[int],
    names: Sequence[str],
    winners: Set[tuple[str, int]] = frozenset(),
) -> Table:
    """Return experiments × levels of one or more measures, those that no ranking counts struck.

    ``winners`` are the experiments that are shown to be the fastest at a level.
    """
    return Table(
        ["experiment", *(f"C = {level}" for level in levels)],
        [
            [
                Cell(row["name"], link=True),
                *(
                    replace(
                        _figures(row, level, names),
                        note="fastest" if (row["name"], level) in winners else "",
                    )
                    for level in levels
                ),
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


def comparisons(
    members: Sequence[Document], levels: Sequence[int], shown: Set[str] = frozenset()
) -> Table:
    """Return what each experiment gains over its baseline, and in what the two differ.

    ``shown`` are the experiments that have a section, which their names lead to.
    """
    compared = [row for row in members if any(point["against"] for point in row["points"])]
    return Table(
        ["experiment", "against", "differs in", *(f"C = {level}" for level in levels)],
        [
            [
                Cell(row["name"], link=True),
                Cell(row["baseline"]["name"], link=row["baseline"]["name"] in shown),
                differs(row),
                *(_against(point_at(row, level)) for level in levels),
            ]
            for row in compared
        ],
        frozenset(range(3, len(levels) + 3)),
    )


def patched(members: Sequence[Document], levels: Sequence[int]) -> Table:
    """Return what patches change: builds that differ from another in their patches alone."""
    by_name = {row["name"]: row for row in members}
    pairs = [
        (by_name[row["baseline"]["name"]], row)
        for row in members
        if row["baseline"]
        and row["baseline"]["name"] in by_name
        and [each["what"] for each in row["baseline"]["differences"]] == ["patches"]
    ]
    return Table(
        ["without", "with", "patches", "status", "right", *(f"C = {level}" for level in levels)],
        [
            [
                Cell(base["name"], link=True),
                Cell(row["name"], link=True),
                Cell(" + ".join(row["engine"]["patches"]) or "none"),
                Cell(f"{base['status']} → {row['status']}", TONES.get(row["status"], "")),
                Cell(f"{right(base).text} → {right(row).text}", right(row).tone),
                *(_both(base, row, level) for level in levels),
            ]
            for base, row in pairs
        ],
        frozenset(range(5, len(levels) + 5)),
    )


def _both(base: Document, row: Document, level: int) -> Cell:
    """Return output tokens per second without and with the patches, and the verdict."""
    figures = [_figures(each, level, ["output_tok_s"]) for each in (base, row)]
    against = (point_at(row, level) or {}).get("against")
    return Cell(
        " → ".join(each.text for each in figures),
        TONES.get(str(against["verdict"]), "") if against else "quiet",
        str(against["verdict"]).replace("-", " ") if against else "",
        struck=any(each.struck for each in figures),
    )


def differs(row: Document) -> Cell:
    """Return in what an experiment differs from its baseline; more than one thing is a warning."""
    names = [each["what"] for each in row["baseline"]["differences"]]
    if len(names) < 2:
        return Cell(names[0] if names else "nothing known")
    shown = names if len(names) <= MOST_DIFFERENCES else [*names[:MOST_DIFFERENCES], "…"]
    return Cell(f"{len(names)} things: {', '.join(shown)}", "warn")


def _against(point: Document | None) -> Cell:
    against = point and point["against"]
    if not against:
        return Cell(wording.NOTHING, "quiet")
    band = wording.interval(against["low"], against["high"])
    effect = f"{wording.change(against['effect'])} {band}".strip()
    verdict = str(against["verdict"])
    return Cell(effect, TONES.get(verdict, ""), verdict.replace("-", " "))


def problems(causes: Sequence[Document], shown: Set[str]) -> Table:
    """Return what failed, was refused or is wrong, each of `causes` with all that it is about."""
    return Table(
        ["status", "at", "why", "what to try", "experiments"],
        [
            [
                Cell(each["status"], TONES.get(each["status"], "")),
                Cell(each["stage"]),
                Cell(each["message"]),
                Cell(each["hint"] or wording.NOTHING),
                Cell(
                    wording.some(each["experiments"], MOST_NAMED),
                    link=len(each["experiments"]) == 1 and each["experiments"][0] in shown,
                ),
            ]
            for each in causes
        ],
    )


VOID_HINT = "measure it again; each experiment's section says how"


def causes(rows: Sequence[Document]) -> list[Document]:
    """Return ``{status, stage, message, hint, experiments}`` for each cause of anything but ok.

    Points whose figures are void are told too, although their experiment is ``ok``.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row["status"] != "ok":
            cause = row["cause"] or {}
            message = str(cause.get("message") or "no reason given")
            key = (row["status"], row["stage"], message, str(cause.get("hint") or ""))
            found.setdefault(key, []).append(row["name"])
        for point in row["points"]:
            if point["status"] == "ok" and point["void"] and point["unranked"]:
                void = ("void", f"point C = {point['concurrency']}", point["void"][0], VOID_HINT)
                found.setdefault(void, []).append(row["name"])
    return [
        {"status": status, "stage": stage, "message": message, "hint": hint, "experiments": names}
        for (status, stage, message, hint), names in found.items()
    ]


def flags(row: Document) -> Table:
    """Return an experiment's flags with who set them and why."""
    return Table(
        ["flag", "value", "set by", "why"],
        [
            [
                Cell(str(flag.get("flag")), code=True),
                Cell(_value(flag.get("value")), code=True),
                Cell(str(flag.get("by") or "")),
                Cell(str(flag.get("why") or "")),
            ]
            for flag in row["flags"]
        ],
    )


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def gates(rows: Sequence[Document], levels: Sequence[int]) -> Table:
    """Return right answers after launch, and before, during and after each level's load.

    With columns for the comparison with a reference and for benchmarks where there are any.
    """
    asked = [row for row in rows if row["correctness"]]
    compared = any(row["correctness"]["reference"] for row in asked)
    scored = any(row["correctness"]["accuracy"] for row in asked)
    return Table(
        [
            "experiment",
            "after launch",
            *(f"C = {level}" for level in levels),
            *(["predictions"] if compared else []),
            *(["benchmarks"] if scored else []),
        ],
        [
            [
                Cell(row["name"], link=True),
                right(row),
                *(_gate(point_at(row, level)) for level in levels),
                *([_predictions(row["correctness"]["reference"])] if compared else []),
                *([_scores(row["correctness"]["accuracy"])] if scored else []),
            ]
            for row in asked
        ],
    )


def _predictions(found: Document | None) -> Cell:
    """Return how far the predictions are from the reference's."""
    if found is None:
        return Cell(wording.NOTHING, "quiet")
    text = f"KL {found['mean_kl']:.2g}, {found['top1']:.1%} alike"
    differs = found["verdict"] == "differs"
    return Cell(text, "warn" if differs else "good", f"{found['verdict']}: {found['name']}")


def _gate(point: Document | None) -> Cell:
    if point is None or point["gate"]["verdict"] is None:
        return Cell(wording.NOTHING, "quiet")
    rounds = [point["gate"][phase] for phase in PHASES if phase in point["gate"]]
    counts = " · ".join(f"{each['right']}/{each['asked']}" for each in rounds)
    verdict = str(point["gate"]["verdict"])
    return Cell(counts, TONES.get(verdict, ""), "" if verdict == "pass" else verdict)


def _scores(found: Sequence[Document]) -> Cell:
    """Return each benchmark's score with its 95 % interval, and what was not shown to be enough."""
    if not found:
        return Cell(wording.NOTHING, "quiet")
    text = ", ".join(
        f"{each['task']} {each['value']:.1%} ({each['low']:.1%} to {each['high']:.1%})"
        for each in found
    )
    told = [
        f"{each['verdict']} {each['least']:g}" for each in found if each["verdict"] != "reached"
    ]
    below = any(each["verdict"] == "below" for each in found)
    return Cell(text, "bad" if below else "warn" if told else "good", ", ".join(told))


def wrong_items(rows: Sequence[Document]) -> Table:
    """Return the questions that were answered wrongly, each with who did so, and how often."""
    found: dict[tuple[str, str], list[tuple[str, Document]]] = {}
    for row in rows:
        for item in (row["correctness"] or {}).get("not_right") or []:
            question = (str(item["prompt"]), str(item["expected"]))
            found.setdefault(question, []).append((row["name"], item))
    often = sorted(found.items(), key=lambda each: -len(each[1]))
    return Table(
        ["question", "expected", "wrong", "for example", "experiments"],
        [
            [
                Cell(prompt),
                Cell(expected, code=True),
                Cell(str(len(items))),
                Cell(str(items[0][1]["got"]), code=True),
                Cell(wording.some(list(dict.fromkeys(name for name, _ in items)), MOST_NAMED)),
            ]
            for (prompt, expected), items in often[:MOST_QUESTIONS]
        ],
        frozenset({2}),
    )


MOST_QUESTIONS = 20


def resolved(row: Document) -> Table:
    """Return the flags that the server settled otherwise than asked, and the line that says why."""
    return Table(
        ["flag", "asked", "resolved", "why"],
        [
            [
                Cell(str(each.get("field")), code=True),
                Cell(_value(each.get("asked")), code=True),
                Cell(_value(each.get("resolved")), "warn", code=True),
                Cell(str(each.get("why") or "no line of the log explains it")),
            ]
            for each in row["resolved"]
        ],
    )


def not_right(items: Sequence[Document]) -> Table:
    """Return the questions that were not answered rightly, each with what came instead."""
    return Table(
        ["when", "question", "expected", "got", "outcome"],
        [
            [
                Cell(item["when"]),
                Cell(str(item["prompt"])),
                Cell(str(item["expected"]), code=True),
                Cell(str(item["got"]), code=True),
                Cell(str(item["outcome"]), "bad", str(item["sign"] or "")),
            ]
            for item in items
        ],
    )


def energy(rows: Sequence[Document], levels: Sequence[int]) -> Table:
    """Return joules per output token at each level, with the power drawn and the idle baseline."""
    watched = [row for row in rows if any(point["energy"] for point in row["points"])]
    return Table(
        ["experiment", "idle", *(f"C = {level}" for level in levels)],
        [
            [
                Cell(row["name"], link=True),
                _idle(row),
                *(_drawn(point_at(row, level)) for level in levels),
            ]
            for row in watched
        ],
        frozenset(range(1, len(levels) + 2)),
    )


def _idle(row: Document) -> Cell:
    """Return what its GPUs drew before each level's load: the range over the levels."""
    known = [
        wording.figure(point["energy"]["idle_power_w"])
        for point in sorted(row["points"], key=_idle_watts)
        if _idle_watts(point)
    ]
    ends = list(dict.fromkeys([*known[:1], *known[-1:]]))
    return Cell(f"{'–'.join(ends)} W") if ends else Cell(wording.NOTHING, "quiet")


def _idle_watts(point: Document) -> float:
    return float((point["energy"] or {}).get("idle_power_w") or 0)


def _drawn(point: Document | None) -> Cell:
    if point is None or point["energy"] is None:
        return Cell(wording.NOTHING, "quiet")
    energy = point["energy"]
    if not energy["counted"]:
        return Cell(wording.NOTHING, "quiet", wording.some(energy["uncounted"]))
    notes = [
        f"{wording.figure(energy['power_w'])} W",
        f"{energy['counted']} of {energy['n']} repeats" if energy["counted"] < energy["n"] else "",
        *(f"{why} in {100 * share:.0f} % of samples" for why, share in energy["slowed"].items()),
    ]
    shown = f"{wording.figure(energy[JOULES])} J"
    return Cell(
        shown, "quiet", ", ".join(filter(None, notes)), struck=point["unranked"] is not None
    )


def sweep(row: Document) -> Table:
    """Return an experiment's points with everything that was measured of them."""
    return Table(
        [
            "C",
            "output tok/s",
            "tok/s per user",
            "TTFT, ms, p50 / p99",
            "TPOT, ms, p50 / p99",
            "tok/s in the server's log",
            "repeats × boots",
            "spread",
            "counts",
        ],
        [_point(point) for point in row["points"]],
        frozenset(range(8)),
    )


def _point(point: Document) -> list[Cell]:
    def pair(measure: str) -> Cell:
        shares = (point[f"{measure}_p50"], point[f"{measure}_p99"])
        if shares == (None, None):
            return Cell(wording.NOTHING, "quiet")
        return Cell(" / ".join(map(wording.figure, shares)), struck=struck)

    struck = point["unranked"] is not None
    spread = point["spread"]
    return [
        Cell(str(point["concurrency"])),
        Cell(wording.figure(point["output_tok_s"]), struck=struck),
        Cell(wording.figure(point["user_tok_s"]), struck=struck),
        pair("ttft_ms"),
        pair("tpot_ms"),
        Cell(wording.figure((point["server"] or {}).get("decode_tok_s")), struck=struck),
        Cell(f"{point['n_repeats']} × {len(point['boots'])}"),
        Cell(wording.share(spread)),
        Cell("no", "bad", str(point["unranked"])) if struck else Cell("yes"),
    ]


MODULES = (
    "experts",
    "attention",
    "dense",
    "communication",
    "norm",
    "sampling",
    "other",
    "unexplained",
)
"""What decoding spends its time on, in the order of columns and of pictures."""


def kernel_time(rows: Sequence[Document]) -> Table:
    """Return where the time of decoding goes: share of each module, with what runs it."""
    profiled = [row for row in rows if row["kernels"]]
    seen = {each["module"] for row in profiled for each in row["kernels"]["modules"]}
    columns = [module for module in MODULES if module in seen]
    return Table(
        ["experiment", "C", *columns],
        [
            [
                Cell(row["name"], link=True),
                Cell(_or_nothing(row["kernels"]["concurrency"])),
                *(_module(row["kernels"], module) for module in columns),
            ]
            for row in profiled
        ],
        frozenset({1}),
    )


def _module(kernels: Document, name: str) -> Cell:
    found = next((each for each in kernels["modules"] if each["module"] == name), None)
    if found is None or found["share"] is None:
        return Cell(wording.NOTHING, "quiet")
    ran = ", ".join(str(found[key]) for key in ("family", "unit") if found[key])
    return Cell(wording.share(found["share"]), "quiet", ran)


def longest_kernels(row: Document) -> Table:
    """Return the kernels that an experiment's decoding spends most time in."""
    return Table(
        ["share", "module", "unit", "kernel"],
        [
            [
                Cell(wording.share(each["share"])),
                Cell(_or_nothing(each["module"])),
                Cell(_or_nothing(each["unit"])),
                Cell(str(each["name"]), code=True),
            ]
            for each in row["kernels"]["longest"]
        ],
        frozenset({0}),
    )


def changes(rows: Sequence[Document], shown: Set[str]) -> Table:
    """Return what changed since the previous report."""
    return Table(
        ["experiment", "what", "before", "now"],
        [
            [
                Cell(change["experiment"], link=change["experiment"] in shown),
                Cell(change["what"]),
                Cell(_or_nothing(change["before"])),
                Cell(_or_nothing(change["now"])),
            ]
            for change in rows
        ],
    )


def _or_nothing(value: object) -> str:
    return wording.NOTHING if value is None else str(value)


def warnings(rows: Sequence[Document]) -> Table:
    """Return every warning once, with the experiments that it is about."""
    return Table(
        ["about", "warning", "experiments"],
        [
            [
                Cell(str(warning["class"])),
                Cell(str(warning["message"])),
                Cell(wording.some(warning["experiments"], MOST_NAMED)),
            ]
            for warning in rows
        ],
    )


def checkpoints(report: Document) -> Table:
    """Return what the checkpoints really were."""
    return Table(
        ["checkpoint", "from", "commit", "formats", "weights", "hash of its files"],
        [
            [
                Cell(str(each["name"])),
                Cell(_or_nothing(each["source"])),
                Cell(str(each["commit"] or wording.NOTHING), code=bool(each["commit"])),
                Cell(_formats(each)),
                Cell(wording.size(each["weights_bytes"])),
                Cell(_short(each["files_sha256"]), code=True),
            ]
            for each in report["provenance"]["checkpoints"]
        ],
    )


def _formats(checkpoint: Document) -> str:
    """Return the formats of a checkpoint, and its verdict unless that is good."""
    told = formats_in_words(checkpoint["formats"])
    verdict = checkpoint["verdict"]
    bad = verdict if verdict not in (None, "consistent") else ""
    return ", ".join(filter(None, [told, bad])) or wording.NOTHING


MODULES_OF_FORMATS = (
    "experts",
    "attention",
    "dense_mlp",
    "shared_experts",
    "lm_head",
    "embeddings",
)
"""Module classes of a checkpoint in the order of their weight; others follow."""


def formats_in_words(formats: Document) -> str:
    """Return each format with its module classes: ``nvfp4 (experts), bf16 (attention, draft)``."""
    by_format: dict[str, list[str]] = {}
    for module in sorted(formats, key=lambda each: (*MODULES_OF_FORMATS, each).index(each)):
        by_format.setdefault(str(formats[module]), []).append(module)
    return ", ".join(f"{form} ({', '.join(modules)})" for form, modules in by_format.items())


def engines(report: Document) -> Table:
    """Return what the engines really were."""
    return Table(
        ["engine", "base", "patches", "hash of its code", "of its packages"],
        [
            [
                Cell(str(each["name"])),
                Cell(each["base"]),
                Cell("; ".join(map(_patch, each["patches"])) or _no_patches(each)),
                Cell(_short(each["tree"]), code=True),
                Cell(_short(each["freeze"]), code=True),
            ]
            for each in report["provenance"]["engines"]
        ],
    )


def _no_patches(engine: Document) -> str:
    return wording.NOTHING if engine["base"] == NOT_MADE else "none"


def _patch(patch: Document) -> str:
    return f"{patch['name']}: {patch['outcome'] or 'not tried'} {_short(patch['sha256'])}".strip()


def _short(digest: object) -> str:
    return str(digest)[:12] if digest else wording.NOTHING
