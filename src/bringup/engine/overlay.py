"""Overlays: an installed ``sglang`` package with patches, placed first on the server's path.

An overlay is a tree of hard links to the installed files, in which a patched file is a file of its
own: nothing is ever written through a link.  What patches do is worked out by git on a small
scratch repository that holds only the files which the patch names, so a patch that fails leaves
the overlay as it was, and the tree is judged, never git's words (``git apply --3way`` prints
"error:" when it succeeds and "Applied cleanly" when it does not; git 2.39).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bringup.engine import git
from bringup.engine.patches import ROOT, FileChange, Outcome, Patch, refusal

EXCERPT_LINES = 12

SIGNIFICANT_LENGTH = 12
SIGNIFICANT_LINES = 3
"""Fewer lines of that length may stand in a file by coincidence."""


def link_tree(source: Path, target: Path) -> None:
    """Make ``target`` a tree of hard links to the files of ``source``, byte code included.

    Files on another file system, which can't be linked to, are copied.
    """
    for folder, _, names in os.walk(source):
        there = target / Path(folder).relative_to(source)
        there.mkdir(parents=True, exist_ok=True)
        for name in names:
            link(Path(folder, name), there / name)


def link(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``, or a copy where that can't be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def apply(patch: Patch, package: Path) -> Outcome:
    """Apply ``patch`` to the overlay ``package``, or leave it as it was.

    Args:
        patch: the patch; its files below ``python/sglang`` are those of ``package``.
        package: an overlay made by `link_tree`.
    """
    if refused := refusal(patch):
        return refused
    changes = [change for change in patch.changes if change.place["is"] == "package"]
    with _bench(patch, changes, package) as bench:
        outcome = bench.outcome()
        if outcome.result in ("applied", "applied-3way"):
            bench.write_back(package)
    return outcome


class _Bench:
    """A scratch repository that holds the files which one patch names, as they are now."""

    def __init__(self, folder: Path, changes: list[FileChange], before: str) -> None:
        self._folder = folder
        self._changes = changes
        self._patch = folder / "patch"
        self._patch.write_bytes(b"".join(change.section for change in changes))
        self._before = before
        self._tree = folder / "tree"

    def outcome(self) -> Outcome:
        if self._works("--reverse", "--check"):
            return self._already("it is in this tree as it is")
        if self._works("--index"):
            return Outcome("applied", "it applied as it is")
        if self._works("--3way"):
            if self._written() == self._before:
                return self._already("merging it changes nothing here")
            return Outcome("applied-3way", "it applied by a 3-way merge with the tree it is for")
        if excerpt := self._conflicts():
            outcome = Outcome(
                "conflict",
                f"{excerpt[0]} was changed here in the same place: rebase it, or take a base "
                "that is closer to it",
                tuple(excerpt),
            )
        else:
            outcome = Outcome(
                "does-not-apply",
                "the lines that it changes are not in this tree: take a base that is closer to it",
                tuple(self._rejected()),
            )
        return self._contained() or outcome

    def write_back(self, package: Path) -> None:
        """Bring the files that changed into ``package``, breaking their links."""
        names = git.output(
            self._tree, "diff", "--name-only", "--no-renames", "-z", self._before, self._written()
        )
        for name in filter(None, names.split("\0")):
            target = package / name.removeprefix(ROOT)
            target.unlink(missing_ok=True)
            if (self._tree / name).exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._tree / name, target)

    def _already(self, why: str) -> Outcome:
        return Outcome("already-in-tree", f"{why}: it can be retired from the list of patches")

    def _works(self, *how: str) -> bool:
        command = ["apply", "--whitespace=nowarn", *how, str(self._patch)]
        return git.run(self._tree, *command).returncode == 0

    def _written(self) -> str:
        return git.output(self._tree, "write-tree").strip()

    def _conflicts(self) -> list[str]:
        """Return the first conflicting path and the place in it, and undo the attempt."""
        names = git.output(self._tree, "diff", "--name-only", "--diff-filter=U", "-z")
        paths = [name for name in names.split("\0") if name]
        excerpt: list[str] = []
        if paths:
            text = (self._tree / paths[0]).read_text(encoding="utf-8", errors="replace")
            lines = text.splitlines()
            start = next((i for i, line in enumerate(lines) if line.startswith("<<<<<<<")), 0)
            excerpt = [paths[0], *lines[start : start + EXCERPT_LINES]]
        git.run(self._tree, "read-tree", "--reset", "-u", self._before)
        return excerpt

    def _rejected(self) -> list[str]:
        """Return the first hunk that finds no place (the scratch tree is spoilt by it)."""
        self._works("--reject")
        for change in self._changes:
            missing = change.old and not (self._tree / change.old).exists()
            if missing:
                return [f"{change.old}: no such file here"]
            rejected = self._tree / f"{change.path}.rej"
            if rejected.exists():
                lines = rejected.read_text(encoding="utf-8", errors="replace").splitlines()
                return [change.path, *lines[1 : 1 + EXCERPT_LINES]]
        return []

    def _contained(self) -> Outcome | None:
        """Recognise a patch that is in the tree among later changes around it.

        Every block that it adds must stand there, none that it removes may, and it must add
        enough for this to be no coincidence.
        """
        git.run(self._tree, "read-tree", "--reset", "-u", self._before)
        significant = 0
        for change in self._changes:
            file = self._tree / change.path
            text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
            lines = text.splitlines()
            for block in change.blocks:
                if block.added and not _holds(lines, block.added):
                    return None
                if block.removed and not block.added and _holds(lines, block.removed):
                    return None
            significant += sum(len(line.strip()) >= SIGNIFICANT_LENGTH for line in change.added)
        if significant < SIGNIFICANT_LINES:
            return None
        return self._already("every block that it adds is in this tree")


def _holds(lines: list[str], block: tuple[str, ...]) -> bool:
    """Tell whether ``block`` stands in ``lines`` as a whole."""
    size = len(block)
    return any(tuple(lines[i : i + size]) == block for i in range(len(lines) - size + 1))


@contextmanager
def _bench(patch: Patch, changes: list[FileChange], package: Path) -> Iterator[_Bench]:
    with tempfile.TemporaryDirectory(prefix="bringup-patch-") as name:
        folder = Path(name)
        tree = folder / "tree"
        subprocess.run(["git", "init", "--quiet", str(tree)], check=True, env=git.isolated())
        if patch.objects:
            (tree / ".git/objects/info/alternates").write_text(f"{patch.objects}\n")
        for path in {path for change in changes for path in (change.old, change.new) if path}:
            source, target = package / path.removeprefix(ROOT), tree / path
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        git.output(tree, "add", "--all", "--force")
        yield _Bench(folder, changes, git.output(tree, "write-tree").strip())
