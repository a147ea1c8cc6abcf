"""Where patches come from: a file, an address, a git ref, a pull request.

What an entry stood for when it was first fetched is kept in the cache, with the patch.  An entry
that names no commit keeps that meaning until its user names another: the document says that it is
not pinned, and when the pull request has moved on.
"""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from bringup import paths
from bringup.artifact import write_text
from bringup.engine.patches import MOST_BYTES, MOST_FILES, Outcome, Patch, too_large
from bringup.engine.repository import COMMIT, Repository, UnreachableError

HOST = "https://github.com"

REPOSITORY = "sgl-project/sglang"
"""Where a pull request is looked for unless its entry names another repository."""

HEAD = "refs/bringup/head"
TRUNK = "refs/bringup/trunk"

DOWNLOAD_S = 60.0


class _RefusedError(Exception):
    """The source answered, and what it has is no patch to apply."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def fetch(source: dict[str, Any]) -> Patch | Outcome:
    """Return the patch that a config entry names, or the outcome of not getting it."""
    try:
        if "file" in source:
            return _from_file(source)
        if "url" in source:
            return _from_address(source)
        return _from_git(source)
    except _RefusedError as refused:
        return refused.outcome


def _from_file(source: dict[str, Any]) -> Patch:
    try:
        content = Path(source["file"]).read_bytes()
    except OSError as error:
        raise _unreachable(f"{source['file']}: {error.strerror}") from None
    return Patch(source, content, {"pinned": True})


def _from_address(source: dict[str, Any]) -> Patch:
    url, wanted = source["url"], source["sha256"]
    kept = _folder() / f"{wanted}.patch"
    if not kept.is_file():
        content = _downloaded(url)
        found = hashlib.sha256(content).hexdigest()
        if found != wanted:
            raise _unreachable(f"{url} has sha256 {found}, the config says {wanted}")
        _keep(kept, content)
    return Patch(source, kept.read_bytes(), {"pinned": True, "url": url})


def _downloaded(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_S) as answer:
            content: bytes = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        gone = error.code < 500
        raise _unreachable(f"{url}: {error.code} {error.reason}", transient=not gone) from None
    except (OSError, ValueError) as error:
        raise _unreachable(f"{url}: {error}", transient=isinstance(error, OSError)) from None
    return content


def _from_git(source: dict[str, Any]) -> Patch:
    """Return the patch of a pull request or a git ref: what it changes since it left the trunk."""
    if "pr" in source:
        url = f"{HOST}/{source.get('repo', REPOSITORY)}"
        ref, pin = f"refs/pull/{source['pr']}/head", source.get("head")
    else:
        url, ref = source["git"]["url"], source["git"]["ref"]
        pin = ref if COMMIT.fullmatch(ref) else None
    repository = Repository(url)
    with repository.locked():
        kept = _kept(source, repository)
        try:
            now = repository.resolve(ref)
        except UnreachableError as error:
            if kept is None:
                raise _unreachable(str(error), transient=True) from None
            return _with(kept, cached=True)
        if kept is not None:
            head = kept.pins["head"]
            return _with(kept, moved_to=now if now != head else None)
        if now is None:
            raise _unreachable(f"{url} has no {ref}")
        try:
            patch = _fetched(source, repository, ref, now, pin)
        except UnreachableError as error:
            raise _unreachable(str(error), transient=True) from None
        _keep(_folder() / f"{patch.sha256}.patch", patch.content)
        record = {"sha256": patch.sha256, "pins": patch.pins}
        write_text(_record(source), json.dumps(record, indent=1) + "\n")
        return patch


def _fetched(
    source: dict[str, Any], repository: Repository, ref: str, now: str, pin: str | None
) -> Patch:
    """Fetch the head and the trunk of a repository, and return what lies between them."""
    head = _head(repository, ref, now, pin)
    fork = repository.fetch(
        "origin", f"+{head}:{HEAD}", f"+HEAD:{TRUNK}", until=lambda: repository.fork(TRUNK, HEAD)
    )
    if fork is None:
        message = f"{head[:12]} shares no history with the main branch of {repository.url}"
        raise _RefusedError(Outcome("does-not-apply", f"{message}: another repository's?"))
    base = fork if fork != head else _base_of_merged(repository, head, named=pin is None)
    changed = repository.changed(base, head)
    if len(changed) > MOST_FILES:  # before its files are fetched
        raise _RefusedError(too_large(len(changed)))
    pins = {
        "pinned": pin is not None,
        "url": repository.url,
        "head": head,
        "base": base,
        "moved_to": now if now != head else None,
    }
    return Patch(source, repository.diff(base, head), pins, repository.objects)


def _head(repository: Repository, ref: str, now: str, pin: str | None) -> str:
    """Return the commit that is meant: the pinned one, which may be an older one, or now's."""
    if pin is None or now.startswith(pin):
        return now
    if COMMIT.fullmatch(pin):
        return pin
    found = repository.fetch("origin", f"+{now}:{HEAD}", until=lambda: repository.commit(pin))
    if found is None:
        raise _unreachable(
            f"{repository.url}: {ref} (now {now[:12]}) has no commit {pin}: give all 40 digits"
        )
    return found


def _base_of_merged(repository: Repository, head: str, *, named: bool) -> str:
    """Return the base of a head that the trunk holds already."""
    if merge := repository.merge_of(TRUNK, head):
        base = repository.fork(repository.parents(merge)[0], head)
        if base and base != head:
            return base
    parents = repository.parents(head)
    if named and head == repository.commit(TRUNK):
        message = "is the main branch itself: it changes nothing against it"
        raise _RefusedError(Outcome("empty", f"{head[:12]} {message}"))
    if len(parents) != 1:
        message = "is a merge commit of the main branch: name the pull request, or its own head"
        raise _RefusedError(Outcome("does-not-apply", f"{head[:12]} {message}"))
    return parents[0]


def _kept(source: dict[str, Any], repository: Repository) -> Patch | None:
    """Return what a git entry stood for the last time, or None."""
    file = _record(source)
    if not file.is_file():
        return None
    record = json.loads(file.read_text(encoding="utf-8"))
    content = _folder() / f"{record['sha256']}.patch"
    if not content.is_file():
        return None
    return Patch(source, content.read_bytes(), record["pins"], repository.objects)


def _with(patch: Patch, **pins: Any) -> Patch:
    return Patch(patch.source, patch.content, {**patch.pins, **pins}, patch.objects)


def _record(source: dict[str, Any]) -> Path:
    entry = json.dumps({"host": HOST, **source}, sort_keys=True)
    return _folder() / f"{hashlib.sha256(entry.encode()).hexdigest()[:16]}.json"


def _folder() -> Path:
    folder = paths.cache() / "patches"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _keep(file: Path, content: bytes) -> None:
    draft = file.with_suffix(".draft")
    draft.write_bytes(content)
    draft.replace(file)


def _unreachable(message: str, *, transient: bool = False) -> _RefusedError:
    return _RefusedError(Outcome("unreachable", message, transient=transient))
