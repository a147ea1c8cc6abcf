"""The points as tables for other tools: one row per point, CSV flat, JSON Lines with repeats."""

from __future__ import annotations

import csv as csv_module
import io
import json
from collections.abc import Iterator

from bringup.artifact import Document
from bringup.report import text
from bringup.report.cases import DRAWN, MEASURES

COLUMNS = (
    "study",
    "experiment",
    "checkpoint",
    "commit",
    "engine",
    "engine_base",
    "patches",
    "experts_format",
    "experts_backend_asked",
    "experts_backend_resolved",
    "experts_backend_used",
    "experts_backend_verdict",
    "concurrency",
    "status",
    "ranked",
    "unranked",
    "gate",
    "n_repeats",
    "n_boots",
    *MEASURES,
    *DRAWN,
    "started",
    "ended",
    "baseline",
    "against_baseline_effect",
    "against_baseline_verdict",
)


def csv(report: Document) -> str:
    """Return the points as CSV with a header; text that a spreadsheet would run is disarmed."""
    buffer = io.StringIO()
    writer = csv_module.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row, _ in _rows(report):
        writer.writerow(_disarmed(row[column]) for column in COLUMNS)
    return buffer.getvalue()


def jsonl(report: Document) -> str:
    """Return the points as JSON Lines: the CSV's fields, the workload, and every repeat."""
    lines = (
        json.dumps(row | {key: point[key] for key in ("workload", "repeats")}, ensure_ascii=False)
        for row, point in _rows(report)
    )
    return "".join(f"{line}\n" for line in lines)


def _rows(report: Document) -> Iterator[tuple[Document, Document]]:
    for experiment in report["experiments"]:
        for point in experiment["points"]:
            yield _row(experiment, point), point


def _row(experiment: Document, point: Document) -> Document:
    backend = experiment["backends"].get("experts") or {}
    against = point["against"] or {}
    return {
        "study": experiment["study"],
        "experiment": experiment["name"],
        "checkpoint": experiment["checkpoint"]["name"],
        "commit": experiment["checkpoint"]["commit"],
        "engine": experiment["engine"]["name"],
        "engine_base": experiment["engine"]["base"],
        "patches": " + ".join(experiment["engine"]["patches"]),
        "experts_format": experiment["formats"].get("experts"),
        **{
            f"experts_backend_{key}": backend.get(key)
            for key in ("asked", "resolved", "used", "verdict")
        },
        "concurrency": point["concurrency"],
        "status": point["status"],
        "ranked": point["unranked"] is None,
        "unranked": point["unranked"],
        "gate": point["gate"]["verdict"],
        "n_repeats": point["n_repeats"],
        "n_boots": len(point["boots"]),
        **{name: point[name] for name in MEASURES},
        **{name: (point["energy"] or {}).get(name) for name in DRAWN},
        **{name: (point["made"] or {}).get(name) for name in ("started", "ended")},
        "baseline": (experiment["baseline"] or {}).get("name"),
        "against_baseline_effect": against.get("effect"),
        "against_baseline_verdict": against.get("verdict"),
    }


def _disarmed(value: object) -> object:
    """Return a CSV field that no spreadsheet takes for a formula and no terminal for an escape."""
    if not isinstance(value, str):
        return value
    line = text.plain(value)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
