"""The points as tables for other tools: one row per point, CSV flat, JSON Lines with repeats.

Besides ours, each row has the fields that readers of InferenceX's aggregates, of vLLM's results and
of SGLang's ``benchmark.serving`` lines look for (`bringup.load.rows`).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from bringup import artifact
from bringup.artifact import Document
from bringup.load import rows
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
    *rows.COLUMNS,
    "power_valid",
    "avg_total_gpu_power_w",
    "avg_power_w",
)
"""Ours first, then those that InferenceX, vLLM and SGLang have for the same figures."""


def write(report: Document, output: Path) -> None:
    """Write ``points.csv`` and ``points.jsonl`` into ``output``, one point after another.

    The CSV has a header, and text that a spreadsheet would run is disarmed.  In the JSON Lines
    flat fields stand under the names that others read; ours stand under ``gate``, ``backend`` and
    ``provenance``, which importers of flat rows leave out, as they do the workload and the repeats.
    """
    with (
        artifact.writing(output / "points.csv") as table,
        artifact.writing(output / "points.jsonl") as lines,
    ):
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row, point in _rows(report):
            writer.writerow([_disarmed(row[column]) for column in COLUMNS])
            lines.write(json.dumps(row | _nested(row, point), ensure_ascii=False) + "\n")


def _nested(row: Document, point: Document) -> Document:
    asked = ("asked", "resolved", "used", "verdict")
    made = ("study", "engine", "engine_base", "patches", "checkpoint", "commit", "started", "ended")
    return {
        "gate": {
            "passed": row["gate"] == "pass",
            "verdict": row["gate"],
            "void": point["void"],
            "server_boot_ids": point["boots"],
        },
        "backend": {key: row[f"experts_backend_{key}"] for key in asked},
        "provenance": {key: row[key] for key in made},
        "workload": point["workload"],
        "repeats": point["repeats"],
    }


def _rows(report: Document) -> Iterator[tuple[Document, Document]]:
    hardware = (report["machine"] or {}).get("words")
    for experiment in report["experiments"]:
        told, about = _told(experiment), _about(experiment, hardware)
        for point in experiment["points"]:
            yield told | _row(experiment, point, about), point


def _told(experiment: Document) -> Document:
    """Return what the rows of an experiment's points have in common, in the order of columns."""
    backend = experiment["backends"].get("experts") or {}
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
    }


def _row(experiment: Document, point: Document, about: rows.About) -> Document:
    against = point["against"] or {}
    return {
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
        **rows.row(_counted(point), about),
        **_power(point["energy"] or {}, len(experiment["gpus"])),
    }


def _counted(point: Document) -> Document:
    """Return a point without figures, where no ranking counts them: others would rank them."""
    return point | {"summary": {}, "repeats": []} if point["unranked"] else point


def _about(experiment: Document, hardware: str | None) -> rows.About:
    return rows.About(
        hw=hardware,
        model=experiment["checkpoint"]["source"] or experiment["checkpoint"]["name"],
        precision=experiment["formats"].get("experts") or experiment["formats"].get("dense_mlp"),
        flags=experiment["flags"],
        gpus=len(experiment["gpus"]),
    )


def _power(energy: Document, gpus: int) -> Document:
    """Return power under the names of InferenceX's aggregate (utils/aggregate_power.py).

    Its importer drops all of it unless ``power_valid`` is the number 1.
    """
    power = energy.get("power_w")
    return {
        "power_valid": int(power is not None),
        "avg_total_gpu_power_w": power,
        "avg_power_w": power / gpus if power is not None and gpus else None,
    }


def _disarmed(value: object) -> object:
    """Return a CSV field that no spreadsheet takes for a formula and no terminal for an escape."""
    return _disarmed_text(value) if isinstance(value, str) else value


@lru_cache(maxsize=1 << 14)  # few of a row's texts are its own
def _disarmed_text(value: str) -> str:
    line = text.plain(value)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
