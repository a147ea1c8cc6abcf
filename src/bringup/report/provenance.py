"""Where the report's facts come from: revision of the workflow, checkpoints, engines, hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from bringup.artifact import Document
from bringup.made import revision
from bringup.report import differences
from bringup.report.cases import Case


def collect(cases: Sequence[Case]) -> Document:
    """Return the workflow's revision and what each checkpoint and engine really was."""
    checkpoints: dict[str, Document] = {}
    engines: dict[str, Document] = {}
    for case in cases:
        told = checkpoints.setdefault(str(case.entry.get("checkpoint")), _checkpoint(case))
        # Weights are fetched for experiments that run, and the first one may have been refused.
        told["files_sha256"] = told["files_sha256"] or _files_digest(case.of("weights"))
        engines.setdefault(str(case.entry.get("engine")), _engine(case))
    return {
        "workflow": revision(),
        "checkpoints": list(checkpoints.values()),
        "engines": list(engines.values()),
    }


def measured(case: Case) -> Document | None:
    """Return when an experiment was measured and by which revisions; None where nothing says so.

    Returns ``{started, ended, workflows}``: from the start of its server to the end of its last
    point, and each revision of the workflow once, as `bringup.made` writes them.
    """
    parts = [(case.of("server").get("live") or {}).get("made")]
    parts += [point.get("made") for point in case.points]
    known = [part for part in parts if part]
    if not known:
        return None
    workflows = [part["workflow"] for part in known if part.get("workflow")]
    return {
        "started": min(part["started"] for part in known),
        "ended": max(part["ended"] for part in known),
        "workflows": [each for at, each in enumerate(workflows) if each not in workflows[:at]],
    }


def period(rows: Sequence[Document]) -> Document | None:
    """Return ``{started, ended}`` over all experiments; None where nothing was measured."""
    known = [row["measured"] for row in rows if row["measured"]]
    if not known:
        return None
    return {
        "started": min(each["started"] for each in known),
        "ended": max(each["ended"] for each in known),
    }


def _checkpoint(case: Case) -> Document:
    source, form = case.of("metadata").get("source") or {}, case.of("format")
    return {
        "name": case.entry.get("checkpoint"),
        "source": source.get("repo") or source.get("path"),
        "asked": source.get("revision"),
        "commit": source.get("commit"),
        "verdict": form.get("verdict"),
        "weights_bytes": form.get("weights_bytes"),
        "files_sha256": _files_digest(case.of("weights")),
        "formats": {name: each.get("format") for name, each in (form.get("classes") or {}).items()},
    }


def _files_digest(weights: Document) -> str | None:
    """Return one hash over the names and hashes of the files that were served."""
    files = weights.get("files")
    if not files:
        return None
    lines = sorted(f"{each.get('sha256')}  {each.get('name')}\n" for each in files)
    return hashlib.sha256("".join(lines).encode("utf-8", "replace")).hexdigest()


def _engine(case: Case) -> Document:
    engine = case.of("engine")
    return {
        "name": case.entry.get("engine"),
        "base": differences.engine_base(case),
        "patches": [
            {
                "name": differences.patch_name(each.get("source")),
                "outcome": each.get("outcome"),
                "sha256": each.get("sha256"),
            }
            for each in engine.get("patches") or []
        ],
        "tree": engine.get("tree"),
        "freeze": engine.get("freeze"),
    }
