"""Bring the files of a checkpoint here and check every one of them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants

from bringup import artifact, paths
from bringup.artifact import Document
from bringup.checkpoint import WEIGHTS_SCHEMA, hashes
from bringup.checkpoint.errors import UnreachableError, UnusableError
from bringup.checkpoint.folder import Folder, open_ranges
from bringup.checkpoint.headers import read_header
from bringup.checkpoint.hub import Repository
from bringup.checkpoint.progress import GIB, Progress, say
from bringup.checkpoint.selection import SAFETENSORS, File

FETCHERS = 8
"""Files fetched at once; huggingface_hub's own default."""

CHECKERS = os.cpu_count() or 1
"""Files hashed at once: each takes a core."""


def bring(metadata: Document) -> Document:
    """Return the document of the files that ``metadata`` names, here and verified.

    Raises:
        UnusableError: a file of a local folder is damaged.
        UnreachableError: the hub, the network or the disk; what is here already stays.
    """
    files = [File(each["name"], each["size"], each["sha256"]) for each in metadata["files"]]
    if metadata["kind"] is None:
        raise UnusableError(f"{_where(metadata)}: no weights (no *.safetensors, *.bin, *.gguf)")
    source = metadata["source"]
    if "path" in source:
        snapshot, digests = _in_place(source["path"], files)
        shown = source["path"]
    else:
        repository = Repository(source["repo"], source["revision"], source["commit"])
        snapshot, digests = _downloaded(repository, files)
        shown = paths.portable(_link(repository, snapshot))
    return artifact.document(
        WEIGHTS_SCHEMA,
        checkpoint=metadata["checkpoint"],
        snapshot=shown,
        files=[{"name": f.name, "size": f.size, "sha256": digests[f.name]} for f in files],
        bytes=sum(file.size for file in files),
    )


def failed(metadata: Document, error: UnusableError) -> Document:
    """Return the document of a checkpoint whose files are damaged."""
    hint = "copy the named file again, then remove this checkpoint's metadata.json"
    return artifact.document(
        WEIGHTS_SCHEMA,
        "failed",
        artifact.reason("checkpoint", str(error), hint=hint),
        checkpoint=metadata["checkpoint"],
        snapshot=None,
        files=[],
        bytes=None,
    )


def _where(metadata: Document) -> str:
    source = metadata["source"]
    return str(source.get("path") or source["repo"])


def _in_place(path: str, files: Sequence[File]) -> tuple[Path, dict[str, str]]:
    """Check the files of a local folder; return the folder and the hashes."""
    folder = Folder(path)
    progress = Progress("verify", sum(file.size for file in files))

    def check(file: File) -> str:
        try:
            return _verified(folder.fetch(file), file, progress)
        except FileNotFoundError:
            raise UnusableError(f"{file.name}: was there, and is gone") from None

    return folder.root, _each(check, files)


def _downloaded(repository: Repository, files: Sequence[File]) -> tuple[Path, dict[str, str]]:
    """Fetch the files that aren't here, check all; return the snapshot's folder and the hashes."""
    with _one_at_a_time(repository):
        missing = [file for file in files if repository.cached(file.name) is None]
        _check_room(missing)
        progress = Progress(f"fetch {repository.repo}", sum(file.size for file in missing))
        digests = _fetched_and_checked(repository, files, progress)
        if missing:
            say(progress.line())
    return _snapshot(repository, files[0]), digests


def _fetched_and_checked(
    repository: Repository, files: Sequence[File], progress: Progress
) -> dict[str, str]:
    """Fetch files, several at once, and check each as it arrives, not holding up the next."""

    def check(file: File) -> str:
        try:
            return _verified(arriving[file].result(), file)
        except UnusableError as error:
            say(f"{repository.repo}: {error}; this file is fetched again")
        path = repository.download(file.name, again=True, bar=progress.bar())
        try:
            return _verified(path, file)
        except UnusableError as error:
            raise UnreachableError(f"{repository.repo}: {error}, twice in a row") from None

    with ThreadPoolExecutor(FETCHERS) as fetchers:
        arriving = {
            file: fetchers.submit(repository.download, file.name, bar=progress.bar())
            for file in files
        }
        try:
            return _each(check, files)
        except KeyboardInterrupt:
            progress.stop()
            raise
        finally:
            fetchers.shutdown(wait=False, cancel_futures=True)


def _snapshot(repository: Repository, file: File) -> Path:
    """Return the folder of the hub cache below which the files lie by their names."""
    path = repository.cached(file.name)
    if path is None:
        raise UnreachableError(f"{repository.repo}: {file.name} vanished from the hub cache")
    return path.parents[file.name.count("/")]


def _each(action: Callable[[File], str], files: Sequence[File]) -> dict[str, str]:
    """Do ``action`` for the files, several at once; start no new ones after the first error."""
    pool = ThreadPoolExecutor(CHECKERS)
    pending = [(file, pool.submit(action, file)) for file in files]
    try:
        return {file.name: future.result() for file, future in pending}
    finally:
        # Without waiting: who interrupts must not wait for a download to be checked.
        pool.shutdown(wait=False, cancel_futures=True)


def _verified(path: Path, file: File, progress: Progress | None = None) -> str:
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


def _check_room(missing: Sequence[File]) -> None:
    """Check that the missing files fit on the hub cache's disk.

    Raises:
        UnreachableError: they don't.
    """
    cache = Path(constants.HF_HUB_CACHE)
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    needed, free = sum(file.size for file in missing), shutil.disk_usage(there).free
    if needed > free:
        raise UnreachableError(
            f"{needed / GIB:.1f} GiB are needed in {cache}, {free / GIB:.1f} GiB are free: free "
            "some, or set HF_HOME to a folder on a larger disk"
        )


@contextmanager
def _one_at_a_time(repository: Repository) -> Iterator[None]:
    """Let one job at a time fetch a repository, so that the next one finds the files."""
    path = paths.cache() / "locks" / f"{_flat(repository.repo)}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _link(repository: Repository, snapshot: Path) -> Path:
    """Link to the snapshot from our cache: documents can't name the folder of a home."""
    link = paths.cache() / "snapshots" / _flat(repository.repo) / repository.commit
    link.parent.mkdir(parents=True, exist_ok=True)
    draft = link.with_name(f".{link.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(snapshot.absolute(), target_is_directory=True)
    draft.replace(link)
    return link


def _flat(repo: str) -> str:
    return repo.replace("/", "--")
