"""Check files: their size, their header, their hash."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bringup.checkpoint import hashes
from bringup.checkpoint.errors import UnusableError
from bringup.checkpoint.folder import Folder, open_ranges
from bringup.checkpoint.headers import read_header
from bringup.checkpoint.progress import Progress
from bringup.checkpoint.selection import SAFETENSORS, File

CHECKERS = os.cpu_count() or 1
"""Files hashed at once: each takes a core."""


def in_place(path: str, files: Sequence[File]) -> dict[str, str]:
    """Check the files of a local folder; return their hashes.

    Raises:
        UnusableError: a file isn't what the metadata says.
        UnreachableError: the folder isn't there.
    """
    folder = Folder(path)
    progress = Progress("verify", sum(file.size for file in files))

    def check(file: File) -> str:
        try:
            return verified(folder.fetch(file), file, progress)
        except FileNotFoundError:
            raise UnusableError(f"{file.name}: was there, and is gone") from None

    return each(check, files)


def verified(path: Path, file: File, progress: Progress | None = None) -> str:
    """Check a file's size, header and hash; return its hash.

    Raises:
        UnusableError: it isn't what the metadata says.
    """
    size = path.stat().st_size
    if size != file.size:
        raise UnusableError(f"{file.name}: {size:,} bytes, {file.size:,} expected")
    if file.name.endswith(f".{SAFETENSORS}"):
        with open_ranges(path) as read:
            read_header(read, size, file.name)
    digest = hashes.sha256(path, progress.add if progress else lambda count: None)
    if file.sha256 is not None and digest != file.sha256:
        raise UnusableError(
            f"{file.name}: right size, wrong content: sha256 {digest}, {file.sha256} expected"
        )
    return digest


def each(action: Callable[[File], str], files: Sequence[File]) -> dict[str, str]:
    """Do ``action`` for the files, several at once; start no new ones after the first error."""
    pool = ThreadPoolExecutor(CHECKERS)
    pending = [(file, pool.submit(action, file)) for file in files]
    try:
        return {file.name: future.result() for file, future in pending}
    finally:
        # Without waiting: who interrupts must not wait for a download to be checked.
        pool.shutdown(wait=False, cancel_futures=True)
