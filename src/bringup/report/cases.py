"""One experiment as its documents tell it: how far it got, what it was, what it measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup import stats
from bringup.artifact import STOPS, Document, reason
from bringup.load import sweeps
from bringup.report.documents import Artefacts

CHAIN = ("plan", "weights", "server", "probe")
"""The stages that an experiment goes through before its points, in order."""

UPSTREAM = ("metadata", "format", "engine", "reading")
"""The stages of its checkpoint and engine, in order; asked only for the cause of a skip."""

PENDING = "pending"
"""The status of an experiment whose documents are not all there: no stage has said anything."""

PHASES = ("before", "during", "after")
"""When a point asks its own questions: before, during and after the load."""

CLASSES = ("experts", "attention", "dense")
"""Module classes whose backends are told, in the order of their weight."""


@dataclass(frozen=True)
class Case:
    """One experiment's config entry and every document about it.

    ``status`` is ``ok | failed | refused | wrong | skipped | pending``; ``stage`` is the stage
    that said so, and ``cause`` its reason (None for ``ok``).  ``foreign``: its server ran on GPUs
    that are not those of this machine.
    """

    entry: Document
    documents: dict[str, Document]
    files: dict[str, Path]
    points: tuple[Document, ...]
    status: str
    stage: str
    cause: Document | None
    foreign: bool

    @property
    def name(self) -> str:
        """Return the experiment's name."""
        return str(self.entry["name"])

    @property
    def study(self) -> str:
        """Return the study it belongs to; an experiment without one is a study of its own."""
        return str(self.entry.get("study") or self.name)

    def of(self, stage: str) -> Document:
        """Return the document of ``stage``, or an empty one."""
        return self.documents.get(stage, {})


def assemble(entry: Document, artefacts: Artefacts) -> Case:
    """Return an experiment with its documents, which are read now."""
    name, checkpoint, engine = (str(entry.get(key)) for key in ("name", "checkpoint", "engine"))
    subjects = dict.fromkeys((*CHAIN, "reference", "accuracy", "kernels"), name) | {
        "metadata": checkpoint,
        "format": checkpoint,
        "engine": engine,
        "reading": f"{checkpoint}--{engine}",
    }
    documents = {
        stage: document
        for stage, subject in subjects.items()
        if (document := artefacts.get(stage, subject)) is not None
    }
    files = {stage: artefacts.path(stage, subjects[stage]) for stage in documents}
    points = tuple(artefacts.points(name))
    foreign = _is_foreign(documents.get("server") or {}, artefacts.get("hardware"))
    return Case(entry, documents, files, points, *_outcome(documents, points), foreign)


def _is_foreign(server: Document, hardware: Document | None) -> bool:
    here = {gpu.get("uuid") for gpu in (hardware or {}).get("gpus") or []}
    told = hardware is not None and None not in here  # nodes of a cluster are known by their kind
    return told and bool(set(server.get("gpus") or []) - here)


def _outcome(
    documents: dict[str, Document], points: Sequence[Document]
) -> tuple[str, str, Document | None]:
    """Return the status of the whole experiment, the stage that decided it, and why."""
    for stage in CHAIN:
        document = documents.get(stage)
        if document is None:
            return PENDING, stage, reason(PENDING, f"no {stage} result yet")
        if document["status"] == "skipped":
            return _first_cause(documents, stage, document)
        if document["status"] != "ok":
            return document["status"], stage, document["reason"]
    benchmarks = documents.get("accuracy", {})
    if benchmarks.get("status") == "wrong":
        return "wrong", "accuracy", benchmarks["reason"]
    for point in points:
        if point["status"] != "ok":
            return point["status"], f"point C = {point['concurrency']}", point["reason"]
    if benchmarks.get("status") == "failed":
        return "failed", "accuracy", benchmarks["reason"]
    return "ok", "point" if points else "probe", None


def _first_cause(
    documents: dict[str, Document], stage: str, skipped: Document
) -> tuple[str, str, Document | None]:
    """Return what the checkpoint or the engine said that made ``stage`` skip."""
    for earlier in UPSTREAM:
        document = documents.get(earlier)
        if document is not None and document["status"] in STOPS - {"skipped"}:
            return document["status"], earlier, document["reason"]
    return "skipped", stage, skipped["reason"]


def by_study(rows: Iterable[Document]) -> dict[str, list[Document]]:
    """Return the rows of each study, both in the order of the config."""
    studies: dict[str, list[Document]] = {}
    for row in rows:
        studies.setdefault(row["study"], []).append(row)
    return studies


def formats(case: Case) -> dict[str, str]:
    """Return the format of each module class of the checkpoint, as far as it is known."""
    classes = case.of("format").get("classes") or {}
    known = {
        name: str(each.get("format", "unknown"))
        for name, each in classes.items()
        if each is not None
    }
    return known or {
        name: str(form) for name, form in (case.of("plan").get("format") or {}).items()
    }


def backends(case: Case) -> dict[str, Document]:
    """Return per module class ``{asked, resolved, used, verdict}``, as far as it is known.

    Before a server has run, only what was asked (and what the engine would pick) is known.
    """
    seen = case.of("server").get("backends") or {}
    profiled = case.of("kernels").get("backends") or {}
    planned = {
        module: {**choice, "asked": choice.get("chosen") or choice.get("asked")}
        for module, choice in (case.of("plan").get("backend") or {}).items()
        if choice
    }
    found: dict[str, Document] = {}
    for name in CLASSES:
        parts = [each[name] for each in (planned, seen, profiled) if each.get(name)]
        if parts:
            found[name] = _backend(parts)
    return found


def _backend(parts: Sequence[Document]) -> Document:
    """Return one backend from what plan, server and kernels say; the later knows better."""
    told: Document = {"asked": None, "resolved": None, "used": None, "verdict": "unverified"}
    for part in parts:
        undecided = part.get("verdict") == "unverified"
        told |= {
            key: part[key]
            for key in told
            if part.get(key) is not None and not (key == "verdict" and undecided)
        }
    return told | {"why": parts[0].get("why")}


def point_rows(case: Case) -> Iterator[Document]:
    """Yield the experiment's points as the report shows them, but for those never tried."""
    objection = _objection(case)
    for point in case.points:
        if point["status"] != "skipped":
            yield _point_row(point, objection)


def _objection(case: Case) -> str | None:
    """Return why no figure of the experiment may be ranked, whatever a point's gate says."""
    if case.of("probe").get("gate") != "pass":
        return "the probes after launch did not pass"
    benchmarks = case.of("accuracy")
    if benchmarks.get("status") == "wrong":
        return f"benchmarks: {benchmarks['reason']['message']}"
    return None


def _point_row(point: Document, objection: str | None) -> Document:
    summary = point.get("summary") or {}
    repeats = point.get("repeats") or []
    boots = sorted({str(each.get("boot") or point.get("boot")) for each in repeats})
    drawn = energy(repeats)
    return {
        "concurrency": point["concurrency"],
        "status": point["status"],
        "reason": point["reason"],
        "unranked": _why_unranked(point, objection),
        "gate": _gate_row(point.get("gate") or {}),
        "void": list(point.get("void") or []),
        "flags": _flags(repeats),
        "workload": point.get("workload") or {},
        "boots": boots,
        "n_repeats": summary.get("n_repeats", len(repeats)),
        "spread": summary.get("spread"),
        "summary": summary,
        **{name: summary.get(name) for name in MEASURES},
        JOULES: (drawn or {}).get(JOULES),
        "energy": drawn,
        "made": made_over(point.get("made") or []),
        "repeats": [_repeat_row(each, str(point.get("boot"))) for each in repeats],
        "server": point.get("server"),
    }


def energy(repeats: Sequence[Document]) -> Document | None:
    """Return what the GPUs of a point drew over its repeats; None where none was watched.

    ``counted`` of ``n`` repeats give energy (sampled from the first send to the last token, and
    not void); ``uncounted`` says why the others don't.
    """
    watched = [each for each in repeats if each.get("gpu")]
    if not watched:
        return None
    counted = [each for each in watched if _gives_energy(each)]
    others = [each for each in watched if not _gives_energy(each)]
    return {
        **{name: _typical(counted, name) for name in DRAWN},
        "counted": len(counted),
        "n": len(repeats),
        "uncounted": list(dict.fromkeys(_why_no_energy(each) for each in others)),
        "slowed": _slowed(each["gpu"] for each in watched),
    }


def made_over(parts: Sequence[Document]) -> Document | None:
    """Return ``{started, ended, workflows}`` of what was made in parts; None of no part.

    ``workflows`` holds each revision of the workflow once, as `bringup.made` writes them.
    """
    known = [part for part in parts if part.get("started") and part.get("ended")]
    if not known:
        return None
    revisions = [part.get("workflow") for part in known]
    workflows = [each for each in revisions if each and each.get("commit")]
    return {
        "started": min(part["started"] for part in known),
        "ended": max(part["ended"] for part in known),
        "workflows": [each for at, each in enumerate(workflows) if each not in workflows[:at]],
    }


JOULES = "joules_per_output_token"

DRAWN = (JOULES, "power_w", "idle_power_w", "utilisation", "clock_mhz")
"""What is told of a point's GPUs: power and energy of all together, the rest their means."""


def _gives_energy(repeat: Document) -> bool:
    return bool(repeat["gpu"].get("power_valid")) and not repeat.get("void")


def _why_no_energy(repeat: Document) -> str:
    return "void" if repeat.get("void") else str(repeat["gpu"].get("power_invalid") or "not known")


def _slowed(gpus: Iterable[Document]) -> dict[str, float]:
    """Return each reason for lower clocks with the largest share of a repeat's samples."""
    found: dict[str, float] = {}
    for gpu in gpus:
        for why, share in (gpu.get("slowed") or {}).items():
            found[why] = max(share, found.get(why, 0.0))
    return found


def _typical(repeats: Sequence[Document], name: str) -> float | None:
    known = [
        stats.Measured(str(each.get("boot")), each["gpu"][name])
        for each in repeats
        if each["gpu"].get(name) is not None
    ]
    return round(stats.typical(known), 4) if known else None


def levels(case: Case, rows: Sequence[Document]) -> Document:
    """Return what the experiment's levels say together, from those that are ranked.

    ``limits`` are those that the config sets on latencies, ``within`` the level (concurrency) with
    the most throughput that keeps them, ``knee`` the one beyond which latency grows faster than
    throughput; each None where there is none.
    """
    ranked = {row["concurrency"] for row in rows if row["unranked"] is None}
    points = [point for point in case.points if point["concurrency"] in ranked]
    limits = (case.entry.get("sweep") or {}).get("limits")
    within = sweeps.best_under(points, limits) if limits else None
    bend = sweeps.knee(points)
    return {
        "limits": limits,
        "within": within and within["concurrency"],
        "knee": bend and bend["concurrency"],
    }


LONGEST_KERNELS = 8

MEASURES = (
    "output_tok_s",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "tpot_ms_p50",
    "tpot_ms_p99",
    "e2e_ms_p50",
    "e2e_ms_p99",
    "user_tok_s",
)
"""What a point's summary holds, in the order of the tables."""


def _why_unranked(point: Document, objection: str | None) -> str | None:
    """Return why a point takes no part in any ranking, or None if it does."""
    gate = (point.get("gate") or {}).get("verdict")
    void = point.get("void")
    if point["status"] in STOPS:
        return f"{point['status']}: {(point['reason'] or {}).get('message', 'no reason given')}"
    if objection:
        return objection
    if gate != "pass":
        return f"its own gate says {gate or 'nothing'}"
    if (point.get("summary") or {}).get("output_tok_s") is None:
        return f"void: {'; '.join(map(str, void))}" if void else "nothing was measured"
    return None


def _gate_row(gate: Document) -> Document:
    rounds = {
        when: {"right": gate[when].get("right"), "asked": gate[when].get("asked")}
        for when in PHASES
        if isinstance(gate.get(when), dict)
    }
    return {"verdict": gate.get("verdict"), **rounds}


def _flags(repeats: Sequence[Document]) -> list[str]:
    """Return what validators found odd but not fatal, each sentence once."""
    said = (
        f"{each['name']}: {each['message']}"
        for repeat in repeats
        for each in repeat.get("validators") or []
        if each.get("verdict") == "flag"
    )
    return list(dict.fromkeys(said))


def _repeat_row(repeat: Document, boot: str) -> Document:
    def quantile(measure: str, which: str) -> Any:
        return (repeat.get(measure) or {}).get(which)

    return {
        "seed": repeat.get("seed"),
        "boot": str(repeat.get("boot") or boot),
        "requests": repeat.get("requests"),
        "completed": repeat.get("completed"),
        "input_tokens": repeat.get("input_tokens"),
        "output_tokens": repeat.get("output_tokens"),
        "duration_s": repeat.get("duration_s"),
        "void": bool(repeat.get("void")),
        "output_tok_s": repeat.get("output_tok_s"),
        "ttft_ms_p50": quantile("ttft_ms", "p50"),
        "ttft_ms_p99": quantile("ttft_ms", "p99"),
        "tpot_ms_p50": quantile("tpot_ms", "p50"),
        "tpot_ms_p99": quantile("tpot_ms", "p99"),
        JOULES: (repeat.get("gpu") or {}).get(JOULES),
    }


def kernels(case: Case) -> Document | None:
    """Return where the time of decoding went, by module, if a profile could be read."""
    found = case.of("kernels")
    if found.get("status") != "ok":
        return None
    kept = ("concurrency", "source", "busy_share", "unexplained_share", "sentence", "notes")
    return {key: found.get(key) for key in kept} | {
        "modules": [
            {key: module.get(key) for key in ("module", "share", "family", "unit")}
            for module in found.get("modules") or []
        ],
        "longest": [
            {key: kernel.get(key) for key in ("name", "share", "module", "unit")}
            for kernel in (found.get("kernels") or [])[:LONGEST_KERNELS]
        ],
    }


def correctness(case: Case) -> Document | None:
    """Return the verdict over the probes after launch, and every answer that was not right.

    ``first`` is the first question asked, as an example; ``not_right`` has the points' own, too.
    """
    probe = case.documents.get("probe")
    if probe is None or probe["status"] == "skipped":
        return None
    items = [_item("after launch", item) for item in probe.get("items") or []]
    not_right = [item for item in items if item["outcome"] != "right"]
    for point in case.points:
        for phase in PHASES:
            told = (point.get("gate") or {}).get(phase) or {}
            when = f"C = {point['concurrency']}, {phase}"
            not_right += [_item(when, item) for item in told.get("not_right") or []]
    return {
        "gate": probe.get("gate"),
        "right": probe.get("right"),
        "asked": probe.get("asked"),
        "first": items[0] if items else None,
        "not_right": not_right,
        "reference": _reference(case.of("reference")),
        "accuracy": case.of("accuracy").get("scores") or [],
    }


def _reference(found: Document) -> Document | None:
    """Return how an experiment's predictions compare with its reference's; None if they don't."""
    if "verdict" not in found:
        return None
    figures = {key: found["figures"][key] for key in ("mean_kl", "tail_kl", "top1", "perplexity")}
    told = {"name": found["reference"], "verdict": found["verdict"], **figures}
    return told | {"batch_kl": found["batch"]["mean_kl"]}


def _item(when: str, item: Document) -> Document:
    """Return a question with its answer, and when it was asked."""
    kept = ("id", "prompt", "expected", "got", "outcome", "sign")
    return {"when": when} | {key: item.get(key) for key in kept}
