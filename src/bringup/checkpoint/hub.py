"""A checkpoint in a repository of the hub, by way of huggingface_hub and its cache.

``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HOME``, ``HF_HUB_CACHE`` and ``HF_HUB_OFFLINE`` mean what they
mean to huggingface_hub.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from bringup.checkpoint.errors import UnreachableError
from bringup.checkpoint.folder import open_ranges
from bringup.checkpoint.headers import ReadRange
from bringup.checkpoint.progress import Quiet, say
from bringup.checkpoint.selection import File

T = TypeVar("T")

TransportError: type[Exception] = next(
    each for each in HfHubHTTPError.__mro__ if each.__name__ == "HTTPError"
)
"""The error class of huggingface_hub's HTTP client, which is httpx in 1.x and httpx2 in 2.x."""

TIMEOUT_S = 30.0
"""Seconds without an answer, or without another byte of one."""

WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before the second and later attempts; a hub that names a time is waited for longer."""

LONGEST_WAIT_S = 300.0
"""Seconds that a hub may ask for; the windows of the hub's rate limits are 5 minutes long."""

PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses of trouble that passes."""

PARTIAL = 206
CONFIG = "config.json"
COMMIT = re.compile(r"[0-9a-f]{40}")
LFS_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Repository:
    """A repository at one commit."""

    repo: str
    revision: str
    """What was asked for: a branch, a tag or a commit."""
    commit: str
    listed: tuple[File, ...] = ()
    """The files that the hub names, or offline, those in the cache."""

    def source(self) -> dict[str, Any]:
        """Return where the checkpoint comes from, as documents hold it."""
        return {"repo": self.repo, "revision": self.revision, "commit": self.commit}

    def files(self) -> list[File]:
        """List the files."""
        return list(self.listed)

    def fetch(self, file: File) -> Path:
        """Bring ``file`` into the hub's cache, unless it is there, and return where it lies."""
        return self.download(file.name)

    def cached(self, name: str) -> Path | None:
        """Return where the file ``name`` lies in the hub's cache, or None."""
        return _cached(self.repo, name, self.commit)

    def download(self, name: str, *, again: bool = False, bar: type[Quiet] = Quiet) -> Path:
        """Download a file; what is in the cache is not fetched again, unless ``again``.

        Raises:
            UnreachableError: it can't be had now.
        """
        return Path(
            patiently(
                self,
                name,
                lambda: huggingface_hub.hf_hub_download(
                    self.repo,
                    name,
                    revision=self.commit,
                    force_download=again,
                    etag_timeout=TIMEOUT_S,
                    tqdm_class=bar,
                ),
            )
        )

    @contextmanager
    def reader(self, file: File) -> Iterator[ReadRange]:
        """Open ``file`` for reading parts of it: from the cache, else by ranges from the hub."""
        here = self.cached(file.name)
        if here is not None:
            with open_ranges(here) as read:
                yield read
        else:
            yield lambda first, count: self._range(file, first, min(count, file.size - first))

    def _range(self, file: File, first: int, count: int) -> bytes:
        if count <= 0:
            return b""
        url = huggingface_hub.hf_hub_url(self.repo, file.name, revision=self.commit)
        headers = {
            **build_hf_headers(),
            "Range": f"bytes={first}-{first + count - 1}",
            "Accept-Encoding": "identity",
        }
        return patiently(self, file.name, lambda: _body(url, headers, count))


def resolve(repo: str, revision: str) -> Repository:
    """Ask the hub which commit a revision is, and which files it has; offline ask the cache.

    Raises:
        UnreachableError: it can't be asked, or the account may not read the repository.
    """
    if constants.is_offline_mode():
        return _from_cache(repo, revision)
    asked = Repository(repo, revision, revision)
    info = patiently(
        asked,
        "the list of files",
        lambda: huggingface_hub.HfApi().model_info(
            repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S
        ),
    )
    listed = tuple(
        File(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None)
        for each in info.siblings or ()
    )
    if not COMMIT.fullmatch(str(info.sha)):
        raise UnreachableError(f"{repo}: {constants.ENDPOINT} names no commit: is it a hub?")
    found = Repository(repo, revision, str(info.sha), listed)
    if revision != found.commit and any(file.name == CONFIG for file in listed):
        # Fetched by its name, so that the cache knows offline which commit the revision is.
        asked.download(CONFIG)
    return found


def _from_cache(repo: str, revision: str) -> Repository:
    config = _cached(repo, CONFIG, revision)
    if config is None:
        raise UnreachableError(
            f"{repo}@{revision}: not in the hub cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE "
            "is set: unset it, or fetch the repository first"
        )
    snapshot = config.parent
    files = [path for path in sorted(snapshot.rglob("*")) if path.is_file()]
    return Repository(
        repo,
        revision,
        snapshot.name,
        tuple(
            File(path.relative_to(snapshot).as_posix(), path.stat().st_size, _lfs_id(path))
            for path in files
        ),
    )


def _lfs_id(path: Path) -> str | None:
    """Return the LFS id of a cached file: what its blob is called, if it is in LFS."""
    blob = path.resolve().name
    return blob if LFS_ID.fullmatch(blob) else None


def _cached(repo: str, name: str, revision: str) -> Path | None:
    try:
        found = huggingface_hub.try_to_load_from_cache(repo, name, revision=revision)
    except HFValidationError:
        raise UnreachableError(_not_a_name(repo)) from None
    return Path(found) if isinstance(found, str) else None


def _body(url: str, headers: Mapping[str, str], count: int) -> bytes:
    """Return ``count`` bytes, however many more the hub would send."""
    with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response:
        if response.is_error:
            response.read()
        hf_raise_for_status(response)
        if response.status_code != PARTIAL:
            raise UnreachableError(f"{url.partition('?')[0]}: the hub doesn't answer byte ranges")
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) >= count:
                break
    return bytes(body[:count])


def patiently(at: Repository, what: str, action: Callable[[], T]) -> T:
    """Return what ``action`` does, trying again while the trouble is of a kind that passes.

    Raises:
        UnreachableError: it wasn't, or didn't; one line says what to do.
    """
    for wait in (*WAITS_S, None):
        try:
            return action()
        except UnreachableError:
            raise
        except (TransportError, OSError, ValueError) as error:
            if wait is None or not _passes(error):
                raise UnreachableError(_line(at, what, error)) from None
            pause = max(wait, _asked_wait(error))
            say(f"{at.repo}: {what}: {_short(error)}; trying again in {pause:.0f} s")
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _passes(error: BaseException) -> bool:
    if isinstance(error, HfHubHTTPError):
        return _status(error) in PASSING
    if isinstance(error, TransportError):
        return True
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return _passes(error.__cause__)
    # huggingface_hub raises a plain OSError, without a number, for a file of the wrong size.
    return type(error) is OSError and error.errno is None


def _status(error: HfHubHTTPError) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _asked_wait(error: BaseException) -> float:
    """Return the seconds that the hub asks to wait."""
    response = getattr(error, "response", None)
    asked = response.headers.get("Retry-After", "") if response is not None else ""
    return min(float(asked), LONGEST_WAIT_S) if asked.isdecimal() else 0.0


def _line(at: Repository, what: str, error: BaseException) -> str:
    """Say in one line what is wrong and what to do."""
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
    if cause is not None and not isinstance(cause, LocalEntryNotFoundError):
        return _line(at, what, cause)
    repo = at.repo
    if isinstance(error, HFValidationError):
        return _not_a_name(repo)
    if isinstance(error, GatedRepoError):
        return (
            f"{repo}: gated: ask for access at {constants.ENDPOINT}/{repo} and set HF_TOKEN to a "
            "token of the account that has it"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{repo}: no such repository at {constants.ENDPOINT}, or a private one: correct the "
            "name, or set HF_TOKEN to a token that may read it"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{repo}: no revision {at.revision!r}: name a branch, a tag or a commit of it"
    if isinstance(error, HfHubHTTPError) and _status(error) in (401, 403):
        return f"{repo}: the hub refuses the token for {what}: check HF_TOKEN and its permissions"
    line = f"{repo}: {what}: {_short(error)} (from {constants.ENDPOINT})"
    if isinstance(error, TransportError) and not isinstance(error, HfHubHTTPError):
        line += "; HF_HUB_OFFLINE=1 makes do with what the hub cache has"
    return line


def _not_a_name(repo: str) -> str:
    return f"{repo}: neither a folder nor the name of a hub repository (owner/name)"


def _short(error: BaseException) -> str:
    if isinstance(error, HfHubHTTPError) and _status(error) is not None:
        return f"HTTP status {_status(error)}"
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
