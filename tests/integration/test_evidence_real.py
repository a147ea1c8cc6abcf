"""The table of resolved fields, held against the sources of real releases."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup import artifact, paths
from bringup.engine import environment
from bringup.evidence.rules import table

pytestmark = pytest.mark.real


def arguments(package: Path) -> set[str]:
    """Return the annotated names in the files in which a release declares its arguments."""
    files = [package / "srt/server_args.py", *package.glob("srt/arg_groups/**/*.py")]
    return {
        name
        for file in files
        for name in re.findall(r"^\s+(\w+)\s*:", file.read_text(encoding="utf-8"), re.MULTILINE)
    }


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3])


@pytest.mark.parametrize("version", ["0.5.13.post1", "0.5.23"])
def test_a_field_is_an_argument_of_just_the_releases_that_the_table_names(
    build_engine: Callable[..., artifact.Document], version: str
) -> None:
    known = arguments(environment.package(paths.actual(build_engine(version)["python"])))
    for row in table("resolved_fields")["fields"]:
        for name, found in row["names"].items():
            first, _, last = found["source"].partition("-")
            covered = release(first) <= release(version) <= release(last or first)
            assert (name in known) == covered, name
