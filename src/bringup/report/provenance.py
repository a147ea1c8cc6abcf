"""Where the report's facts come from: revision of the workflow, checkpoints, engines, hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from bringup.artifact import Document
from bringup.made import revision
from bringup.report import differences
from bringup.report.cases import Case, formats, made_over


@dataclass
class Sources:
    """What each checkpoint and engine really was, from one experiment after another."""

    checkpoints: dict[str, Document] = field(default_factory=dict)
    engines: dict[str, Document] = field(default_factory=dict)

    def add(self, case: Case) -> None:
        """Take what the documents of an experiment say, which can be let go then."""
        checkpoint, engine = (str(case.entry.get(key)) for key in ("checkpoint", "engine"))
        if checkpoint not in self.checkpoints:
            self.checkpoints[checkpoint] = _checkpoint(case)
        # Weights are fetched for experiments that run, and the first one may have been refused.
        told = self.checkpoints[checkpoint]
        told["files_sha256"] = told["files_sha256"] or _files_digest(case.of("weights"))
        if engine not in self.engines:
            self.engines[engine] = _engine(case)

    def told(self) -> Document:
        """Return them, with the workflow's revision."""
        return {
            "workflow": revision(),
            "checkpoints": list(self.checkpoints.values()),
            "engines": list(self.engines.values()),
        }


def measured(case: Case) -> Document | None:
    """Return when an experiment was measured, from the start of its server to its last point."""
    parts = [(case.of("server").get("live") or {}).get("made")]
    parts += [made for point in case.points for made in point.get("made") or []]
    return made_over([part for part in parts if part])


def period(rows: Sequence[Document]) -> Document | None:
    """Return ``{started, ended}`` over all experiments; None where nothing was measured."""
    whole = made_over([row["measured"] for row in rows if row["measured"]])
    return whole and {key: whole[key] for key in ("started", "ended")}


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
        "formats": formats(case),
    }


def _files_digest(weights: Document) -> str | None:
    """Return one hash over the names and hashes of the files that were served."""
    files = weights.get("files")
    if not files:
        return None
    lines = sorted(f"{each.get('sha256')}  {each.get('name')}\n" for each in files)
    return hashlib.sha256("".join(lines).encode("utf-8", "replace")).hexdigest()


NOT_MADE = "not made"
"""What stands for the base of an engine that no experiment which could run has asked for."""


def _engine(case: Case) -> Document:
    engine = case.of("engine")
    return {
        "name": case.entry.get("engine"),
        "base": differences.engine_base(case) if engine else NOT_MADE,
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
