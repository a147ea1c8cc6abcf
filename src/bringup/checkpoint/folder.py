"""A checkpoint in a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bringup import paths
from bringup.checkpoint.errors import UnreachableError, UnusableError
from bringup.checkpoint.headers import ReadRange
from bringup.checkpoint.selection import File

DEPTH = 2
"""Folders below the checkpoint's that are listed; needed files lie no deeper."""


def is_path(text: str) -> bool:
    """Whether ``text`` is meant as a folder, there or not, rather than as a repository."""
    return text.startswith(("/", ".", "~", "{")) or text.count("/") > 1 or Path(text).exists()


class Folder:
    """The files of a folder, none of which may lie outside it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Take the folder at ``path``.

        Raises:
            UnreachableError: there is no such folder.
        """
        self.given = str(path)
        self.root = paths.actual(self.given).resolve()
        if not self.root.is_dir():
            raise UnreachableError(f"{self.given}: no such folder (checkpoint's `path`)")

    def source(self) -> dict[str, Any]:
        """Return where the checkpoint comes from, as documents hold it."""
        return {"path": paths.portable(self.given)}

    def files(self) -> list[File]:
        """List the files.

        Raises:
            UnusableError: a file is a link to somewhere else.
        """
        found = []
        for folder, folders, names in os.walk(self.root):
            below = Path(folder).relative_to(self.root)
            folders[:] = [] if len(below.parts) >= DEPTH else [
                each for each in folders if not each.startswith(".")
            ]  # fmt: skip
            for name in names:
                file = Path(folder, name)
                self._check_inside(file)
                found.append(File((below / name).as_posix(), file.stat().st_size))
        return found

    def fetch(self, file: File) -> Path:
        """Return where ``file`` lies."""
        return self.root / file.name

    @contextmanager
    def reader(self, file: File) -> Iterator[ReadRange]:
        """Open ``file`` for reading parts of it."""
        with open_ranges(self.root / file.name) as read:
            yield read

    def _check_inside(self, file: Path) -> None:
        if not file.is_symlink() and file.is_file():
            return
        target = file.resolve()
        # A snapshot folder of a hub cache links to its sibling blobs: those are its own files.
        homes = [self.root]
        if self.root.parent.name == "snapshots":
            homes.append(self.root.parent.parent / "blobs")
        if not any(target.is_relative_to(home) for home in homes):
            raise UnusableError(f"{self._shown(file)}: a link that leaves the checkpoint's folder")
        if not target.is_file():
            raise UnusableError(f"{self._shown(file)}: a link to nothing, or no regular file")

    def _shown(self, file: Path) -> str:
        return f"{self.given}/{file.relative_to(self.root).as_posix()}"


@contextmanager
def open_ranges(path: Path) -> Iterator[ReadRange]:
    """Open a local file for reading parts of it."""
    with path.open("rb") as opened:

        def read(first: int, count: int) -> bytes:
            opened.seek(first)
            return opened.read(count)

        yield read
