"""Bring the files of a hub repository into the hub's cache, and check every one of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from huggingface_hub import constants

from bringup import paths
from bringup.checkpoint.errors import UnreachableError, UnusableError
from bringup.checkpoint.hub import Repository
from bringup.checkpoint.progress import GIB, Progress, say
from bringup.checkpoint.selection import File
from bringup.checkpoint.verify import each, verified
from bringup.resident import locked

FETCHERS = 8
"""Files fetched at once; huggingface_hub's own default."""


def download(source: Mapping[str, str], files: Sequence[File]) -> tuple[Path, dict[str, str]]:
    """Fetch the files that aren't here, and check all.

    Args:
        source: the repository, revision and commit, as metadata has them.
        files: what is needed of it.

    Returns:
        The folder below which the files lie by their names (a link in our cache to the hub's), and
        their hashes.

    Raises:
        UnreachableError: the hub, the network or the disk; what is here already stays.
    """
    repository = Repository(source["repo"], source["revision"], source["commit"])
    with _one_at_a_time(repository):
        missing = [file for file in files if repository.cached(file.name) is None]
        _check_room(missing)
        progress = Progress(f"fetch {repository.repo}", sum(file.size for file in missing))
        digests = _fetched_and_checked(repository, files, progress)
        if missing:
            say(progress.line())
        return _link(repository, _snapshot(repository, files[0])), digests


def _fetched_and_checked(
    repository: Repository, files: Sequence[File], progress: Progress
) -> dict[str, str]:
    """Fetch files, several at once, and check each as it arrives, not holding up the next."""

    def check(file: File) -> str:
        try:
            return verified(arriving[file].result(), file)
        except UnusableError as error:
            say(f"{repository.repo}: {error}; this file is fetched again")
        path = repository.download(file.name, again=True, bar=progress.bar())
        try:
            return verified(path, file)
        except UnusableError as error:
            raise UnreachableError(f"{repository.repo}: {error}, twice in a row") from None

    with ThreadPoolExecutor(FETCHERS) as fetchers:
        arriving = {
            file: fetchers.submit(repository.download, file.name, bar=progress.bar())
            for file in files
        }
        try:
            return each(check, files)
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
    with ExitStack() as held:
        try:
            held.enter_context(locked(path, wait=False))
        except BlockingIOError:
            say(f"{repository.repo}: another job fetches it; waiting")
            held.enter_context(locked(path))
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
