"""Where the report's facts come from: revision of the workflow, checkpoints, engines, hashes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from bringup.artifact import Document
from bringup.paths import PROJECT
from bringup.report import differences
from bringup.report.cases import Case


def collect(cases: Sequence[Case]) -> Document:
    """Return the workflow's revision and what each checkpoint and engine really was."""
    return {
        "workflow": revision(),
        "checkpoints": list(
            {case.entry.get("checkpoint"): _checkpoint(case) for case in cases}.values()
        ),
        "engines": list({case.entry.get("engine"): _engine(case) for case in cases}.values()),
    }


def revision() -> Document | None:
    """Return ``{commit, dirty}`` of this checkout; None where it is not one, or git is absent."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit, "dirty": bool(changed)}


def _git(*arguments: str) -> str:
    asked = ["git", "-C", str(PROJECT), *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _checkpoint(case: Case) -> Document:
    source, form = case.of("metadata").get("source") or {}, case.of("format")
    return {
        "name": case.entry.get("checkpoint"),
        "source": source.get("repo") or source.get("path"),
        "asked": source.get("revision"),
        "commit": source.get("commit"),
        "verdict": form.get("verdict"),
        "weights_bytes": form.get("weights_bytes"),
        "formats": {name: each.get("format") for name, each in (form.get("classes") or {}).items()},
    }


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
