"""What changed since the previous report: a small file of earlier rows beside the report.

``history.jsonl`` holds one snapshot a line, the oldest first: for each experiment its status and
the figures that people act on.  A report that shows nothing new adds none, so writing the same
report twice tells the same changes twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bringup import artifact
from bringup.artifact import Document
from bringup.report import wording

SCHEMA = "history/1"

MOST_SNAPSHOTS = 10
MOST_BYTES = 4 * 2**20

SAME = 0.05
"""A throughput that moved by less is not told as a change: it was not measured to be one."""

Rows = dict[str, Any]


def update(path: Path, experiments: Sequence[Document], *, remember: bool = True) -> Document:
    """Return the changes since the previous report, and add a snapshot of this one to ``path``.

    Without ``remember`` it is only looked at: the next report is compared with the same one.

    Returns ``{previous, rows}``: whether there was an earlier report, and
    ``{experiment, what, before, now}`` for each change.  Rows of studies that this report doesn't
    show (a narrowed run) are carried on unchanged.
    """
    snapshots = _read(path)
    studies = {row["study"] for row in experiments}
    ours = {row["name"]: _row(row) for row in experiments}
    if snapshots and _of(snapshots[-1], studies) == ours:
        earlier = snapshots[:-1]
    else:
        earlier = snapshots
        kept = {} if not snapshots else _without(snapshots[-1], studies)
        if remember:
            _write(path, [*snapshots, {"schema": SCHEMA, "rows": kept | ours}])
    before = _of(earlier[-1], studies) if earlier else {}
    return {"previous": bool(before), "rows": list(_changes(before, ours)) if before else []}


def _row(row: Document) -> Document:
    """Return what a snapshot keeps of an experiment."""
    found = row["correctness"] or {}
    experts = row["backends"].get("experts") or {}
    return {
        "study": row["study"],
        "status": row["status"],
        "right": f"{found['right']}/{found['asked']}" if found.get("asked") else None,
        "backend": experts.get("used"),
        "engine": " + ".join([row["engine"]["base"], *row["engine"]["patches"]]),
        "checkpoint": row["checkpoint"]["commit"] or row["checkpoint"]["name"],
        "tok_s": {
            str(point["concurrency"]): point["output_tok_s"]
            for point in row["points"]
            if point["unranked"] is None
        },
    }


TOLD = ("status", "right", "backend", "engine", "checkpoint")
"""Fields of a row whose every change is told."""


def _changes(before: Rows, now: Rows) -> Iterator[Document]:
    for name in dict.fromkeys([*now, *before]):
        if name not in before:
            yield _change(name, "experiment", None, f"new, {now[name]['status']}")
        elif name not in now:
            yield _change(name, "experiment", before[name]["status"], "gone from the config")
        else:
            yield from _changes_of(name, before[name], now[name])


def _changes_of(name: str, before: Document, now: Document) -> Iterator[Document]:
    for field in TOLD:
        if before.get(field) != now[field]:
            yield _change(name, field, before.get(field), now[field])
    old, new = before.get("tok_s") or {}, now["tok_s"]
    for level in sorted({*old, *new}, key=int):
        was, becomes = old.get(level), new.get(level)
        if was is None or becomes is None or abs(becomes / was - 1) >= SAME:
            shown = [None if each is None else wording.figure(each) for each in (was, becomes)]
            if shown != [None, None]:
                yield _change(name, f"output tok/s at C = {level}", *shown)


def _change(name: str, what: str, before: object, now: object) -> Document:
    return {"experiment": name, "what": what, "before": before, "now": now}


def _of(snapshot: Document, studies: set[str]) -> Rows:
    return {n: row for n, row in snapshot["rows"].items() if row.get("study") in studies}


def _without(snapshot: Document, studies: set[str]) -> Rows:
    return {n: row for n, row in snapshot["rows"].items() if row.get("study") not in studies}


def _read(path: Path) -> list[Document]:
    """Return the snapshots that can be read; a broken or older line is dropped."""
    if not path.exists():
        return []
    snapshots = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            snapshot = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(snapshot, dict) and snapshot.get("schema") == SCHEMA:
            snapshots.append(snapshot)
    return snapshots


def _write(path: Path, snapshots: Sequence[Document]) -> None:
    """Write the newest snapshots that fit, two at least: one to compare with, one of now."""
    lines = [json.dumps(each, ensure_ascii=False) + "\n" for each in snapshots][-MOST_SNAPSHOTS:]
    while len(lines) > 2 and sum(map(len, lines)) > MOST_BYTES:
        del lines[0]
    artifact.write_text(path, "".join(lines))
