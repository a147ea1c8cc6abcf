"""Put together the report's document, from which every format of the report is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bringup import artifact
from bringup.artifact import Document
from bringup.report import cases, differences, ranking
from bringup.report.cases import Case
from bringup.report.documents import Artefacts, shown

SCHEMA = "report/1"


def compose(experiments: Sequence[Document], artefacts: Artefacts, output: Path) -> Document:
    """Return the report document: notices, machine, studies, experiments.

    Links in it are relative to ``output``, the folder that the report is written to.
    """
    assembled = cases.assemble(experiments, artefacts)
    rows = [_experiment(case, output) for case in assembled]
    ranking.compare_with_baselines(assembled, rows)
    return artifact.document(
        SCHEMA,
        notices=[*artefacts.notices, *_notices(rows, artefacts.get("hardware"))],
        machine=_machine(artefacts.get("hardware")),
        studies=[_study(name, rows) for name in dict.fromkeys(row["study"] for row in rows)],
        experiments=rows,
    )


def _notices(rows: Sequence[Document], hardware: Document | None) -> list[Document]:
    """Return what a reader must know of the whole before believing any part of it."""
    notices = []
    if hardware is None:
        notices.append(artifact.reason("no-hardware", "nothing is known of the machine"))
    if not any(row["points"] for row in rows):
        notices.append(
            artifact.reason("no-point", "nothing was measured: this report holds no figure")
        )
    foreign = _foreign(rows, hardware)
    if foreign:
        notices.append(
            artifact.reason(
                "mixed-machines",
                "results from more than one machine are mixed: these experiments ran on GPUs that "
                "this machine does not have",
                evidence=foreign,
                hint="compare nothing across them; delete their server.json to measure them here",
            )
        )
    return notices


def _foreign(rows: Sequence[Document], hardware: Document | None) -> list[str]:
    """Return the experiments whose server ran on GPUs that are not this machine's."""
    if hardware is None:
        return []
    here = {gpu.get("uuid") for gpu in hardware.get("gpus") or []}
    return [row["name"] for row in rows if set(row["gpus"]) - here]


def _machine(hardware: Document | None) -> Document | None:
    if hardware is None:
        return None
    gpus = hardware.get("gpus") or []
    cpu = hardware.get("cpu") or {}
    kinds = dict.fromkeys(str(gpu.get("name")) for gpu in gpus)
    words = " + ".join(f"{sum(gpu.get('name') == kind for gpu in gpus)} × {kind}" for kind in kinds)
    return {
        "words": words or f"a CPU ({cpu.get('model') or 'unknown'}, {cpu.get('cores', '?')} cores)",
        "architecture": hardware.get("architecture"),
        "gpus": gpus,
        "driver": hardware.get("driver"),
        "cuda": hardware.get("cuda"),
        "cpu": cpu,
        "ram_gib": hardware.get("ram_gib"),
    }


def _study(name: str, rows: Sequence[Document]) -> Document:
    members = [row for row in rows if row["study"] == name]
    levels = sorted({point["concurrency"] for row in members for point in row["points"]})
    return {
        "name": name,
        "experiments": [row["name"] for row in members],
        "answer": [],
        "concurrencies": levels,
        "rankings": [ranking.rank(members, level) for level in levels],
    }


def _experiment(case: Case, output: Path) -> Document:
    plan, server, engine = case.of("plan"), case.of("server"), case.of("engine")
    return {
        "name": case.name,
        "study": case.study,
        "status": case.status,
        "stage": case.stage,
        "cause": case.cause,
        "checkpoint": _checkpoint(case),
        "engine": {
            "name": case.entry.get("engine"),
            "base": differences.engine_base(case),
            "patches": differences.patches(engine, case.entry),
        },
        "formats": cases.formats(case),
        "backends": cases.backends(case),
        "correctness": cases.correctness(case),
        "points": list(cases.point_rows(case)),
        "command": _command(plan, server),
        "env": plan.get("env") or {},
        "flags": plan.get("flags") or [],
        "warnings": [*(plan.get("warnings") or []), *(server.get("warnings") or [])],
        "boot": server.get("boot"),
        "gpus": server.get("gpus") or [],
        "load_s": server.get("load_s"),
        "memory": server.get("memory") or {},
        "versions": server.get("versions") or {},
        "links": _links(case, output),
    }


def _checkpoint(case: Case) -> Document:
    source = case.of("metadata").get("source") or {}
    return {
        "name": case.entry.get("checkpoint"),
        "source": source.get("repo") or source.get("path"),
        "revision": source.get("revision"),
        "commit": source.get("commit"),
        "weights_bytes": case.of("format").get("weights_bytes"),
    }


def _command(plan: Document, server: Document) -> list[str]:
    """Return the command line as it was run, or as it would be."""
    return [str(each) for each in server.get("argv") or plan.get("argv") or []]


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
