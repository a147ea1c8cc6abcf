"""Just what is needed of somebody's git repository: commits, and the files of a few of them.

A mirror is a bare repository in the cache, one per address.  It is fetched without trees and
files (``--filter=tree:0``; a server that knows no filters sends what the depth asks for), no deeper
than it takes to find where two lines of history part.  Trees and files come when they are read.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bringup import paths
from bringup.engine import git
from bringup.resident import locked

DEPTHS = ("--depth=64", "--depth=512", "--depth=4096", "--unshallow")
"""How far back history is fetched, until what is looked for is in it."""

DIFF = (
    "--full-index", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--find-renames",
    "--diff-algorithm=myers", "--unified=3", "--inter-hunk-context=0",
    "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
"""Everything that a user's own settings could change about a patch."""

PATIENCE = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60")
"""A server that sends less than 1 kB/s for a minute has gone."""

SOMEBODYS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
"""Variables that point git at another repository (a hook of that one may have started us)."""

COMMIT = re.compile(r"[0-9a-f]{40}")

RELEASE_TAG = re.compile(r"refs/tags/v(\d+(?:\.\d+)+(?:\.post\d+)?)(\^\{\})?")


class UnreachableError(ConnectionError):
    """The server gave no answer (or there is no such repository: git does not tell)."""


class Repository:
    """A repository that can be asked and fetched from."""

    def __init__(self, url: str) -> None:
        """Take the address as git does: any host, or a local path."""
        self.url = str(Path(url).absolute()) if Path(url).is_dir() else url
        name = hashlib.sha256(self.url.encode()).hexdigest()[:16]
        self.folder = paths.cache() / "git" / name

    @property
    def objects(self) -> Path:
        """The folder of the objects that were fetched so far."""
        return self.folder / "objects"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other jobs away from the mirror, which is made if need be."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.folder.with_suffix(".lock")):
            if not (self.folder / "config").is_file():
                git.output(self.folder.parent, "init", "--bare", "--quiet", str(self.folder))
            for key, value in (
                ("remote.origin.url", self.url),
                ("remote.origin.promisor", "true"),
                ("remote.origin.partialclonefilter", "tree:0"),
                ("gc.auto", "0"),
            ):
                git.output(self.folder, "config", key, value)
            yield

    def resolve(self, ref: str) -> str | None:
        """Return the commit that the server has for a branch, tag, full ref or commit; None: gone.

        Raises:
            UnreachableError: the server gave no answer.
        """
        if COMMIT.fullmatch(ref):
            return ref
        refs = self._refs(ref, f"{ref}^{{}}")
        order = (f"refs/tags/{ref}^{{}}", f"refs/heads/{ref}", f"refs/tags/{ref}", ref)
        return next((refs[name] for name in order if name in refs), None)

    def releases(self) -> dict[str, str]:
        """Return the commits of the server's release tags: commit → version.

        Raises:
            UnreachableError: the server gave no answer.
        """
        found: dict[str, str] = {}
        for name, commit in self._refs("refs/tags/v*").items():
            if tag := RELEASE_TAG.fullmatch(name):
                found[commit] = tag.group(1)
        return found

    def fetch(self, *specs: str, until: Callable[[], str | None]) -> str | None:
        """Fetch ``specs`` deep enough for ``until`` to return something, and return that.

        Raises:
            UnreachableError: the server gave no answer, or does not have them.
        """
        for depth in DEPTHS:
            if depth == "--unshallow" and not (self.folder / "shallow").exists():
                break
            self._network("fetch", "--quiet", "--no-tags", "--filter=tree:0", depth, *specs)
            if found := until():
                return found
        return None

    def has(self, commit: str) -> bool:
        """Tell whether a commit was fetched already."""
        asked = git.run(self.folder, "rev-list", "--max-count=1", "--missing=allow-any", commit)
        return asked.returncode == 0

    def commit(self, name: str) -> str | None:
        """Return the whole id of a commit that was fetched, or None."""
        asked = git.run(self.folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return asked.stdout.strip() or None

    def parents(self, commit: str) -> list[str]:
        """Return the parents of a commit, as far as history was fetched."""
        listed = git.output(self.folder, "rev-list", "--parents", "--max-count=1", commit)
        return listed.split()[1:]

    def fork(self, trunk: str, head: str) -> str | None:
        """Return the commit where ``head`` left ``trunk``, or None if it was not found."""
        return git.run(self.folder, "merge-base", trunk, head).stdout.strip() or None

    def merge_of(self, trunk: str, head: str) -> str | None:
        """Return the commit of ``trunk`` that merged ``head``, or None."""
        merges = git.output(
            self.folder, "rev-list", "--merges", "--parents", "--ancestry-path", f"{head}..{trunk}"
        )
        for line in merges.splitlines():
            merge, _, *others = line.split()
            if head in others:
                return merge
        return None

    def ancestry(self, commit: str) -> list[str]:
        """Return a commit and its ancestors, as far as they were fetched, the newest first."""
        return git.output(self.folder, "rev-list", "--topo-order", commit).split()

    def diff(self, base: str, head: str) -> bytes:
        """Return the patch from one commit to another, with whole object ids.

        Raises:
            UnreachableError: files of it could not be fetched.
        """
        return self._network("-c", "core.quotePath=false", "diff", *DIFF, base, head)

    def changed(self, base: str, head: str) -> list[str]:
        """Return the paths that differ between two commits.

        Raises:
            UnreachableError: their trees could not be fetched.
        """
        names = self._network("diff", "--name-only", "--no-renames", "-z", base, head)
        return [name for name in names.decode(errors="replace").split("\0") if name]

    def export(self, commit: str, below: str, target: Path) -> None:
        """Write the files that a commit has below a folder into ``target``.

        Raises:
            UnreachableError: they could not be fetched.
        """
        missing = self._network(
            "rev-list", "--objects", "--missing=print", "--no-object-names", f"{commit}:{below}"
        )
        wanted = b"\n".join(
            line[1:] for line in missing.splitlines() if line.startswith(b"?")
        )  # all at once: read one by one they would be fetched one by one
        if wanted:
            self._network(
                "-c", "fetch.negotiationAlgorithm=noop", "fetch", "--quiet", "--no-tags",
                "--no-write-fetch-head", "--filter=blob:none", "--stdin", "origin", given=wanted,
            )  # fmt: skip
        archive = self._network("archive", "--format=tar", f"{commit}:{below}")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            # `filter="data"` by another way: Python before 3.11.4 has no filters and ignores this
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(target)

    def _refs(self, *patterns: str) -> dict[str, str]:
        listed = self._network("ls-remote", "origin", *patterns).decode(errors="replace")
        pairs = (line.split("\t") for line in listed.splitlines())
        return {name: commit for commit, name in pairs}

    def _network(self, *command: str, given: bytes = b"") -> bytes:
        """Run a command that may ask the server, with the user's proxies and credentials."""
        ours = {name: value for name, value in os.environ.items() if name not in SOMEBODYS}
        done = subprocess.run(
            ["git", *PATIENCE, *command],
            cwd=self.folder,
            env={**ours, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            capture_output=True,
            input=given,
        )
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no answer"]
            raise UnreachableError(f"{self.url}: {lines[-1]}")
        return done.stdout
