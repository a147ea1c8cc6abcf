"""SHA-256 of large files, computed once as long as a file isn't changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from bringup import artifact, paths

CHUNK = 2**18
"""Bytes hashed between two reports; the hash runs without Python's lock meanwhile.  What was read
is still in the core's cache when it is hashed: larger pieces were a few percent slower."""


def sha256(path: Path, report: Callable[[int], None] = lambda count: None) -> str:
    """Return the SHA-256 of a file; from the cache, if its size, time and inode are as they were.

    Args:
        path: the file; of a link, what it leads to.
        report: told how many more bytes are done, those from the cache too.
    """
    real = path.resolve()
    state = real.stat()
    mark = {"size": state.st_size, "mtime_ns": state.st_mtime_ns, "inode": state.st_ino}
    name = hashlib.sha256(os.fsencode(real)).hexdigest()[:32]
    known = paths.cache() / "hashes" / f"{name}.json"
    found = _read(known)
    if found is not None and {key: found.get(key) for key in mark} == mark:
        report(state.st_size)
        return str(found["sha256"])
    digest = computed(real, report)
    artifact.write(known, {"schema": "hash/1", **mark, "sha256": digest})
    return digest


def computed(path: Path, report: Callable[[int], None] = lambda count: None) -> str:
    """Return the SHA-256 of a file, read anew."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            report(count)
    return digest.hexdigest()


def _read(path: Path) -> artifact.Document | None:
    try:
        return artifact.read(path)
    except (OSError, ValueError):
        return None
