"""Where patches come from: a file, an address, a git ref, a pull request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bringup.engine.patches import Outcome, Patch

REPOSITORY = "sgl-project/sglang"
"""Where a pull request is looked for unless its entry names another repository."""


def fetch(source: dict[str, Any]) -> Patch | Outcome:
    """Return the patch that a config entry names, or the outcome of not getting it."""
    return _from_file(source)


def _from_file(source: dict[str, Any]) -> Patch | Outcome:
    try:
        content = Path(source["file"]).read_bytes()
    except OSError as error:
        return Outcome("unreachable", f"{source['file']}: {error.strerror}")
    return Patch(source, content, {"pinned": True})
