"""Put together the report's document, from which every format of the report is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bringup import artifact, command, validators
from bringup import plan as plans
from bringup.artifact import Document
from bringup.load.definitions import MEANING
from bringup.report import answers, cases, differences, provenance, ranking, text
from bringup.report.cases import Case
from bringup.report.documents import Artefacts, shown

SCHEMA = "report/1"

MOST_EVIDENCE = 20
"""Names and lines shown under a notice or a cause."""


def compose(experiments: Sequence[Document], artefacts: Artefacts, output: Path) -> Document:
    """Return the report document but for what changed: notices, machine, studies, experiments.

    Links in it are relative to ``output``, the folder that the report is written to.
    """
    hardware = artefacts.get("hardware")
    machine = text.clean(_machine(hardware))
    rows: list[Document] = []
    contenders: list[ranking.Contender] = []
    sources, foreign = provenance.Sources(), []
    for entry in experiments:  # one after the other: all their documents are too large to hold
        case = cases.assemble(entry, artefacts)
        rows.append(text.clean(_experiment(case, output)))
        contenders.append(ranking.Contender.of(case))
        sources.add(case)
        if case.foreign:
            foreign.append(case.name)
    ranking.compare_with_baselines(contenders, rows)
    studies = cases.by_study(rows)
    notices = [*artefacts.notices, *_notices(foreign, rows, hardware)]
    return artifact.document(
        SCHEMA,
        notices=text.clean(notices),
        machine=machine,
        studies=[_study(name, members, machine) for name, members in studies.items()],
        experiments=rows,
        warnings=_warnings(rows),
        provenance=text.clean(sources.told()) | {"measured": provenance.period(rows)},
        definitions=MEANING,
    )


def _notices(
    foreign: Sequence[str], rows: Sequence[Document], hardware: Document | None
) -> list[Document]:
    """Return what a reader must know of the whole before believing any part of it."""
    notices = []
    if hardware is None:
        notices.append(artifact.reason("no-hardware", "nothing is known of the machine"))
    if not any(row["points"] for row in rows):
        message = "nothing was measured: this report holds no figure"
        notices.append(artifact.reason("no-point", message))
    if foreign:
        notices.append(
            artifact.reason(
                "mixed-machines",
                "results of more than one machine are mixed: "
                f"{len(foreign)} experiments ran on GPUs that this machine does not have",
                evidence=foreign[:MOST_EVIDENCE],
                hint="compare nothing across them; each section says how to measure it here",
            )
        )
    return notices


def _machine(hardware: Document | None) -> Document | None:
    if hardware is None:
        return None
    gpus, cpu = hardware.get("gpus") or [], hardware.get("cpu") or {}
    kinds = dict.fromkeys(str(gpu.get("name")) for gpu in gpus)
    words = " + ".join(f"{sum(gpu.get('name') == kind for gpu in gpus)} × {kind}" for kind in kinds)
    return {
        "words": words or f"a CPU ({cpu.get('model') or 'unknown'}, {cpu.get('cores', '?')} cores)",
        "described": bool(hardware.get("described")),
        "architecture": hardware.get("architecture"),
        "gpus": gpus,
        "driver": hardware.get("driver"),
        "cuda": hardware.get("cuda"),
        "cpu": cpu,
        "ram_gib": hardware.get("ram_gib"),
    }


def _study(name: str, members: Sequence[Document], machine: Document | None) -> Document:
    levels = sorted({point["concurrency"] for row in members for point in row["points"]})
    rankings = [ranking.rank(members, level) for level in levels]
    return {
        "name": name,
        "experiments": [row["name"] for row in members],
        "concurrencies": levels,
        "rankings": rankings,
        "answer": answers.answer(members, rankings, machine["words"] if machine else None),
    }


def _experiment(case: Case, output: Path) -> Document:
    plan, server, engine = case.of("plan"), case.of("server"), case.of("engine")
    points = list(cases.point_rows(case))
    return {
        "name": case.name,
        "study": case.study,
        "status": case.status,
        "stage": case.stage,
        "cause": _shortened(case.cause),
        "checkpoint": _checkpoint(case),
        "engine": {
            "name": case.entry.get("engine"),
            "base": differences.engine_base(case),
            "patches": differences.patches(engine),
        },
        "formats": cases.formats(case),
        "contradictions": case.of("format").get("contradictions") or [],
        "reading": _reading(case),
        "backends": cases.backends(case),
        "accepted": {key: case.entry[key] for key in ACCEPTED if case.entry.get(key)},
        "correctness": cases.correctness(case),
        "kernels": cases.kernels(case),
        "points": points,
        "levels": cases.levels(case, points),
        "command": _command(case),
        "env": plan.get("env") or {},
        "flags": plan.get("flags") or [],
        "resolved": server.get("differences") or [],
        "fit": plan.get("fit"),
        "warnings": list(_warnings_of(case, points)),
        "notes": [str(note.get("message", note)) for note in plan.get("notes") or []],
        "boot": server.get("boot"),
        "gpus": server.get("gpus") or [],
        "load_s": server.get("load_s"),
        "memory": {key: (server.get("memory") or {}).get(key) for key in MEMORY},
        "versions": _versions(server),
        "power_limits_w": _power_limits(server),
        "measured": provenance.measured(case),
        "links": _links(case, output),
    }


def _versions(server: Document) -> Document:
    """Return the versions that the server ran with; the hash of its tree stands with its engine."""
    return {
        name: version
        for name, version in (server.get("versions") or {}).items()
        if name != "tree" and version is not None
    }


def _power_limits(server: Document) -> list[float]:
    """Return the power limits of its GPUs as they were at launch, in watts."""
    gpus = (server.get("live") or {}).get("gpus") or []
    return [gpu["power_limit_w"] for gpu in gpus if gpu.get("power_limit_w") is not None]


MEMORY = ("weights_gib", "kv_gib", "graphs_gib", "available_gib")

ACCEPTED = ("force", "accept_conflict", "accept_misreading")
"""The config's escape hatches; each takes a reason, which the report repeats."""


def _shortened(cause: Document | None) -> Document | None:
    return cause and {**cause, "evidence": list(cause.get("evidence") or [])[:MOST_EVIDENCE]}


def _checkpoint(case: Case) -> Document:
    source = case.of("metadata").get("source") or {}
    return {
        "name": case.entry.get("checkpoint"),
        "source": source.get("repo") or source.get("path"),
        "revision": source.get("revision"),
        "commit": source.get("commit"),
        "weights_bytes": case.of("format").get("weights_bytes"),
    }


def _reading(case: Case) -> Document | None:
    """Return how the engine's build reads the checkpoint: agrees, misreads, cannot-load."""
    reading = case.of("reading")
    if not reading.get("verdict"):
        return None
    return {key: reading.get(key) for key in ("verdict", "message", "fixed_by")}


def _command(case: Case) -> list[str]:
    """Return the server's command line, the interpreter first."""
    plan = case.of("plan")
    if not plan.get("argv") or not plan.get("python"):
        return []
    weights = case.of("weights")
    return command.words(plan, weights.get("snapshot") or "{model}", draft=weights.get("draft"))


def _warnings_of(case: Case, points: Sequence[Document]) -> Iterable[Document]:
    """Yield ``{class, message}`` of what the plan, the server's log and the validators noticed."""
    for stage in ("plan", "server"):
        for warning in case.of(stage).get("warnings") or []:
            yield {"class": warning.get("class"), "message": warning.get("message")}
    if case.of("reference").get("verdict") == "differs":
        why = case.of("reference")["reason"]
        yield {
            "class": why["class"],
            "message": ". ".join(filter(None, [why["message"], why["hint"]])),
        }
    plan, sweep = case.of("plan"), case.entry.get("sweep", {})
    told = "fit" in plan and all(each.get("flag") for each in plan.get("flags") or [{}])
    if plan.get("status") == "ok" and told and "concurrency" in sweep:
        yield from plans.sweep_warnings(plan, sweep)
    for point in points:
        for flag in point["flags"]:
            yield {"class": "validator", "message": f"C = {point['concurrency']}: {flag}"}
        for void in point["void"]:
            yield {"class": "void", "message": f"C = {point['concurrency']}: {void}"}
    counted = {p["concurrency"]: p["output_tok_s"] for p in points if p["unranked"] is None}
    sweep = validators.rises_with_concurrency(counted)
    if sweep.verdict == "flag":
        yield {"class": "validator", "message": sweep.message}


def _warnings(rows: Sequence[Document]) -> list[Document]:
    """Return every warning once, with the experiments that it is about."""
    about: dict[tuple[Any, Any], dict[str, None]] = {}
    for row in rows:
        for warning in row["warnings"]:
            about.setdefault((warning["class"], warning["message"]), {})[row["name"]] = None
    return [
        {"class": class_, "message": message, "experiments": list(names)}
        for (class_, message), names in about.items()
    ]


def _links(case: Case, output: Path) -> list[Document]:
    """Return what there is to read about an experiment, relative to the report."""
    files = dict(case.files)
    server = files.get("server")
    if server is not None and case.of("server")["status"] != "skipped":
        files |= {"server log": server.with_name("server.log")}
        files |= {"serve.sh": server.with_name("serve.sh")}
    if "plan" in files:
        files["stage logs"] = files["plan"].with_name("logs")
    return [{"what": what, "path": shown(path, output)} for what, path in files.items()]
