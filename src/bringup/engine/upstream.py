"""What is known of SGLang's own pull requests: since when a release holds one, what it fixes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml


def fix(architecture: str | None, read_as: str, actual: str, version: str) -> str | None:
    """Return what makes a build read such weights rightly, in words, or None if nothing is known.

    Args:
        architecture: the checkpoint's model class.
        read_as: the format that the build took the weights for.
        actual: the format that they are.
        version: the build's version; what it holds already can't be the cure.
    """
    for row in _table():
        cure = row.get("fixes")
        if (
            cure
            and (architecture in cure["architectures"] or cure["architectures"] == "any")
            and read_as in cure["read"]
            and actual in cure["is"]
            and older(version, row["since"])
        ):
            if "pr" in row:
                return f"PR #{row['pr']} (in {row['since']})"
            return f"SGLang {row['since']}"
    return None


@dataclass(frozen=True)
class Merged:
    """A pull request that a package holds: why that is known, and a line by which it shows."""

    why: str
    marker: dict[str, str]


def merged(pr: int, version: str | None, package: Path) -> Merged | None:
    """Tell whether a pull request is known to be in a package already.

    A release after the merge is not believed without the text by which the request shows: the
    package may be somebody's own.
    """
    for row in _table():
        if row.get("pr") == pr and version and not older(version, row["since"]):
            file = package / row["marker"]["file"]
            lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
            shows = [line.strip() for line in lines if row["marker"]["text"] in line]
            if shows:
                marker = {"file": row["marker"]["file"], "text": shows[0]}
                return Merged(f"SGLang holds it since {row['since']}", marker)
    return None


def older(version: str, other: str) -> bool:
    """Tell whether a release came before another."""
    return _ordered(version) < _ordered(other)


def _ordered(version: str) -> tuple[tuple[int, ...], int]:
    """Order releases of the form 0.5.13 and 0.5.13.post1; development versions as their release."""
    release = re.match(r"\d+(\.\d+)*", version)
    post = re.search(r"\.post(\d+)", version)
    numbers = tuple(int(part) for part in release.group().split(".")) if release else ()
    return numbers, int(post.group(1)) if post else 0


@cache
def _table() -> tuple[dict[str, Any], ...]:
    table = yaml.safe_load(Path(__file__).with_name("pull_requests.yaml").read_text())
    return tuple(table["pull_requests"])
