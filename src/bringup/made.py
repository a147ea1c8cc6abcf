"""When a result was made, and by which revision of the workflow."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime

from bringup.artifact import Document
from bringup.paths import PROJECT

MOST_NAMED = 20
"""Changed files that are named one by one."""


def now() -> str:
    """Return the time, UTC, as documents write it: ``2026-06-17T09:30:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def since(started: str) -> Document:
    """Return ``{started, ended, workflow}`` of what was begun at ``started`` and is done now."""
    return {"started": started, "ended": now(), "workflow": revision()}


def revision() -> Document | None:
    """Return ``{commit, dirty, changed}`` of this checkout; None without one, or without git.

    ``dirty``: files that git knows differ from the commit; ``changed`` names the first of them.
    """
    try:
        commit = _git("rev-parse", "HEAD").strip()
        status = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    changed = [line[3:] for line in status.splitlines()]
    return {"commit": commit, "dirty": bool(changed), "changed": changed[:MOST_NAMED]}


def _git(*arguments: str) -> str:
    asked = ["git", "-C", str(PROJECT), *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout
