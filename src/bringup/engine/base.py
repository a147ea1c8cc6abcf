"""What patches go on: a release, somebody's interpreter, or a git ref over a release's parts."""

from __future__ import annotations

import filecmp
import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup import artifact, paths
from bringup.artifact import Document
from bringup.engine import environment, overlay
from bringup.engine.patches import ROOT, Outcome, Result, place
from bringup.engine.repository import COMMIT, Repository, UnreachableError

HEAD = "refs/bringup/base"

BUILT = (".so", "_version.py")
"""Ends of the names of files that a wheel has and the repository hasn't: made when it is built."""


@dataclass(frozen=True)
class Base:
    """What patches go on.

    Attributes:
        description: the document's ``base``: what was asked for and what it stood for.
        key: names the base's content; part of the overlay's key.
        python: its interpreter.
        package: the folder of the ``sglang`` package.
        overlay: the folder that holds it, where that has to be put on the path.
    """

    description: Document
    key: str
    python: Path
    package: Path
    overlay: Path | None = None


class BaseRefusedError(Exception):
    """The base is there, and no engine can be made of it."""

    def __init__(self, description: Document, outcome: Outcome) -> None:
        """Take the base as it was resolved, and why it was refused."""
        super().__init__(outcome.message)
        self.description = description
        self.outcome = outcome


def find(entry: dict[str, Any]) -> Base:
    """Return the base of an engine's entry, made if need be.

    Raises:
        environment.EnvironmentUnusableError: the environment could not be had.
        BaseRefusedError: the git ref is gone or needs another compiled part.
        ConnectionError: the git ref could not be fetched.
    """
    if "git" in entry:
        return _at_ref(entry["git"]["url"], entry["git"]["ref"])
    if "python" in entry:
        python = environment.checked(entry["python"])
        package = environment.package(python)
        return Base({"python": entry["python"]}, _stamp(package), python, package)
    return _release(str(entry["version"]))


def _release(version: str) -> Base:
    python = environment.ensure(version)
    package = environment.package(python)
    return Base({"version": version}, environment.Release(version).key, python, package)


def _stamp(package: Path) -> str:
    """Name the content of a package that is not ours by its files' sizes and times."""
    stamp = hashlib.sha256(str(package).encode())
    for path in sorted(package.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            status = path.stat()
            stamp.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return stamp.hexdigest()


def _at_ref(url: str, ref: str) -> Base:
    """Return the Python of a git ref over the compiled parts of the release before it."""
    repository = Repository(url)
    with repository.locked():
        found = _known(repository, ref) or _resolved(repository, url, ref)
        under = _release(found["release"])
        key = f"{found['commit']}-{under.key}"
        folder = paths.cache() / "overlays" / f"git-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        if not folder.is_dir():
            _lay_over(repository, found["commit"], under.package, folder)
    return Base({"git": found}, key, under.python, folder / "sglang", folder)


def _known(repository: Repository, ref: str) -> Document | None:
    """Return what a ref stood for when it was first used; where it is now, if it can be asked."""
    file = _record(repository, ref)
    if not file.is_file():
        return None
    found = artifact.read(file)
    if not found["pinned"]:
        try:
            now = repository.resolve(ref)
        except UnreachableError:
            return {**found, "cached": True}
        found["moved_to"] = now if now != found["commit"] else None
    return found


def _record(repository: Repository, ref: str) -> Path:
    return repository.folder / "bases" / f"{hashlib.sha256(ref.encode()).hexdigest()[:16]}.json"


def _resolved(repository: Repository, url: str, ref: str) -> Document:
    """Return what a ref stands for; the commit changes nothing compiled since its release."""
    asked: Document = {
        "url": url,
        "ref": ref,
        "pinned": bool(COMMIT.fullmatch(ref)),
        "commit": None,
        "release": None,
        "moved_to": None,
    }

    def refused(result: Result, message: str, excerpt: Iterable[str] = ()) -> BaseRefusedError:
        return BaseRefusedError({"git": asked}, Outcome(result, message, tuple(excerpt)))

    commit = repository.resolve(ref)
    if commit is None:
        raise refused("unreachable", f"{url} has no {ref}")
    asked["commit"] = commit
    releases = repository.releases()
    tagged = repository.fetch(
        "origin", f"+{commit}:{HEAD}", until=lambda: _newest(repository, releases)
    )
    if tagged is None:
        raise refused("unreachable", f"{url}: no release tag (v0.5.23) stands before {ref}")
    asked["release"] = releases[tagged]
    changed = repository.changed(tagged, commit)
    compiled = [name for name in changed if place(name)["is"] == "compiled"]
    if compiled:
        what = f"{compiled[0]} ({place(compiled[0])['what']})"
        raise refused(
            "touches-compiled-code",
            f"{ref} changes {what} since release {releases[tagged]}: build that SGLang yourself "
            "and name its interpreter (python:)",
            compiled,
        )
    artifact.write(_record(repository, ref), asked)
    return asked


def _newest(repository: Repository, releases: dict[str, str]) -> str | None:
    return next((each for each in repository.ancestry(HEAD) if each in releases), None)


def _lay_over(repository: Repository, commit: str, release: Path, folder: Path) -> None:
    """Write a commit's package into ``folder``, with what was built for ``release``.

    Files that are the release's own are links to it.
    """
    draft = folder.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    package = draft / "sglang"
    package.mkdir(parents=True)
    try:
        repository.export(commit, ROOT.rstrip("/"), package)
    except UnreachableError:
        shutil.rmtree(draft)
        raise
    for path in release.rglob("*"):
        target = package / path.relative_to(release)
        if target.is_file():
            if filecmp.cmp(path, target, shallow=False):
                target.unlink()
                overlay.link(path, target)
        elif path.name.endswith(BUILT):
            target.parent.mkdir(parents=True, exist_ok=True)
            overlay.link(path, target)
    draft.rename(folder)
