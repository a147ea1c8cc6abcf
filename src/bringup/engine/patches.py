"""What a patch is: its files, what each is to an engine, and what came of applying it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import yaml

ROOT = "python/sglang/"
"""Where the repository keeps the package that is installed as ``sglang``."""

MOST_FILES = 300
MOST_BYTES = 4 << 20
"""A patch with more is no pull request but a merge or a whole branch (PR #25820: 10 files)."""

Result = Literal[
    "applied",
    "applied-3way",
    "already-in-tree",
    "conflict",
    "does-not-apply",
    "touches-compiled-code",
    "empty",
    "too-large",
    "unreachable",
]

DONE: frozenset[Result] = frozenset({"applied", "applied-3way", "already-in-tree"})
"""Results after which the patch's content is in the tree."""

NO_FILE = "/dev/null"

FILE_MODES = (None, "100644", "100755")
"""Modes of plain files; others are links, which could lead out of the tree, and submodules."""

_HUNK = re.compile(rb"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True)
class Outcome:
    """What came of one patch.

    Attributes:
        result: the outcome by its name.
        message: one sentence: why, and what to do.
        excerpt: lines that show a conflict or a hunk which found no place.
        transient: the answer may be another one next time (no network).
    """

    result: Result
    message: str
    excerpt: tuple[str, ...] = ()
    transient: bool = False


@dataclass(frozen=True)
class Block:
    """Lines that stand together in a patch: what goes and what comes in its place."""

    removed: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True)
class FileChange:
    """One file's part of a patch.

    Attributes:
        old, new: paths from the repository's root; None where the file is added or deleted.
        section: the part of the patch about this file, byte for byte.
        hunks: number of hunks.
        blocks: what it changes, block by block.
        binary: it changes a binary file.
        mode: the mode of a file that it adds, or gives another mode: ``100644``.
    """

    old: str | None
    new: str | None
    section: bytes
    hunks: int = 0
    blocks: tuple[Block, ...] = ()
    binary: bool = False
    mode: str | None = None

    @property
    def path(self) -> str:
        """The path by which people know the file."""
        return self.new or self.old or ""

    @property
    def added(self) -> list[str]:
        """All lines that it adds, without line ends."""
        return [line for block in self.blocks for line in block.added]

    @property
    def place(self) -> dict[str, str]:
        """The row of ``repository_paths.yaml`` that says what this file is to an engine."""
        return place(self.path)


@dataclass(frozen=True)
class Patch:
    """A patch at hand.

    Attributes:
        source: the config's entry that asked for it.
        content: the patch itself, with full object ids where it comes from git.
        pins: what the source stood for when it was resolved (commits, whether the user named them).
        objects: git object folder that holds the files before the patch, for a 3-way merge.
    """

    source: dict[str, Any]
    content: bytes
    pins: dict[str, Any] = field(default_factory=dict)
    objects: Path | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def changes(self) -> list[FileChange]:
        return list(parsed(self.content))


def named(source: dict[str, Any]) -> str:
    """Return what people call the patch of a config entry: ``PR #25820``, a file, an address."""
    if "pr" in source:
        return f"PR #{source['pr']}" + (f" of {source['repo']}" if "repo" in source else "")
    if "git" in source:
        return f"{source['git']['url']} at {source['git']['ref']}"
    return str(source.get("file") or source["url"])


def parsed(content: bytes) -> Iterator[FileChange]:
    """Yield each file's part of a unified diff, git's or plain."""
    for section in _sections(content):
        yield _change(section)


def _sections(content: bytes) -> Iterator[list[bytes]]:
    """Split a diff before each file, minding that hunks may hold lines that look like headers."""
    section: list[bytes] = []
    left_old = left_new = 0
    git = False
    for line in content.splitlines(keepends=True):
        if left_old > 0 or left_new > 0:
            left_old -= line[:1] in (b" ", b"-", b"\n")
            left_new -= line[:1] in (b" ", b"+", b"\n")
        elif hunk := _HUNK.match(line):
            left_old, left_new = (1 if n is None else int(n) for n in hunk.groups())
        elif line.startswith(b"diff --git ") or (line.startswith(b"--- ") and not git):
            if section:
                yield section
            section = []
            git = line.startswith(b"diff --git ")
        elif not section:
            continue  # a commit's message before the first file
        section.append(line)
    if section:
        yield section


def _change(section: list[bytes]) -> FileChange:
    start = next((i for i, line in enumerate(section) if _HUNK.match(line)), len(section))
    header, body = section[:start], section[start:]
    old, new = _paths(header)
    mode = re.search(rb"^new (?:file )?mode (\d+)", b"".join(header), re.MULTILINE)
    return FileChange(
        old,
        new,
        section=b"".join(section),
        hunks=sum(1 for line in body if _HUNK.match(line)),
        blocks=tuple(_blocks(body)),
        binary=any(line.startswith((b"GIT binary patch", b"Binary files ")) for line in header),
        mode=mode.group(1).decode() if mode else None,
    )


def _paths(lines: list[bytes]) -> tuple[str | None, str | None]:
    """Return the old and new path of a file's part, from its header."""
    old, new = _header_paths(lines[0])
    for line in lines:
        word, _, rest = line.strip().partition(b" ")
        text = rest.decode(errors="replace")
        if word == b"---":
            old = _path(text)
        elif word == b"+++":
            new = _path(text)
        elif word == b"rename" and text.startswith("from "):
            old = text.removeprefix("from ")
        elif word == b"rename" and text.startswith("to "):
            new = text.removeprefix("to ")
        elif word == b"new":
            old = None if text.startswith("file mode") else old
        elif word == b"deleted":
            new = None
    return old, new


def _blocks(body: list[bytes]) -> Iterator[Block]:
    """Yield the runs of removed and added lines of a file's hunks."""
    removed: list[str] = []
    added: list[str] = []
    for line in [*body, b" "]:
        text = line[1:].rstrip(b"\r\n").decode(errors="replace")
        if line.startswith(b"-"):
            removed.append(text)
        elif line.startswith(b"+"):
            added.append(text)
        elif (removed or added) and not line.startswith(b"\\"):  # "No newline at end of file"
            yield Block(tuple(removed), tuple(added))
            removed, added = [], []


def _header_paths(line: bytes) -> tuple[str | None, str | None]:
    """Return the paths of ``diff --git a/x b/y``."""
    found = re.match(rb'diff --git "?a/(.*?)"? "?b/(.*?)"?\r?\n?$', line)
    if not found:
        return None, None
    old, new = (group.decode(errors="replace") for group in found.groups())
    return old, new


def _path(field: str) -> str | None:
    """Return the path of a ``---`` or ``+++`` line (a plain diff's has a time after a tab)."""
    text = field.split("\t")[0].strip().strip('"')
    if text == NO_FILE:
        return None
    return text[2:] if text.startswith(("a/", "b/")) else text


def outside(path: str) -> bool:
    """Tell whether a path of a patch leaves the tree that it is for."""
    return path.startswith("/") or ".." in PurePosixPath(path).parts


def place(path: str) -> dict[str, str]:
    """Return the row of ``repository_paths.yaml`` for a path from the repository's root."""
    return next(row for row in _places() if fnmatchcase(path, row["match"]))


@cache
def _places() -> tuple[dict[str, str], ...]:
    table = yaml.safe_load(Path(__file__).with_name("repository_paths.yaml").read_text())
    return tuple(table["rows"])


def too_large(files: int, size: int | None = None) -> Outcome:
    """Return the outcome of a patch with that many files and bytes."""
    weight = "" if size is None else f" in {size >> 10} KiB"
    return Outcome(
        "too-large",
        f"it changes {files} files{weight} (most: {MOST_FILES} files, {MOST_BYTES >> 10} KiB): a "
        "merge or a whole branch, no patch",
    )


def refusal(patch: Patch) -> Outcome | None:
    """Return why a patch is not even tried on a tree, or None."""
    changes = patch.changes
    package = [change for change in changes if change.place["is"] == "package"]
    if not changes:
        return Outcome("empty", "it changes no file: is it a diff, and of the right commits?")
    if len(changes) > MOST_FILES or len(patch.content) > MOST_BYTES:
        return too_large(len(changes), len(patch.content))
    for change in changes:
        paths = [path for path in (change.old, change.new) if path]
        if any(outside(path) for path in paths):
            return Outcome("does-not-apply", f"it writes outside of the tree: {change.path}")
    compiled = [change for change in changes if change.place["is"] == "compiled"]
    if compiled:
        return Outcome(
            "touches-compiled-code",
            f"{compiled[0].path} is {compiled[0].place['what']}, which has to be compiled: build "
            "that SGLang yourself and name its interpreter (python:)",
            tuple(change.path for change in compiled),
        )
    if not package:
        return Outcome(
            "empty",
            f"none of its {len(changes)} files belongs to the package (python/sglang): is it for "
            "another repository, or does it change documentation and tests only?",
        )
    if binary := [change.path for change in package if change.binary]:
        return Outcome("does-not-apply", f"it changes a binary file: {binary[0]}")
    if special := [change.path for change in package if change.mode not in FILE_MODES]:
        return Outcome("does-not-apply", f"it adds a link or a submodule: {special[0]}")
    if b"\r\n" in package[0].section.split(b"\n@@", 1)[0]:
        return Outcome(
            "does-not-apply",
            "its lines end in CR LF, those of SGLang in LF: convert it (dos2unix)",
        )
    return None


def marker(patch: Patch, package: Path) -> dict[str, str] | None:
    """Return a line by which the patch shows in a tree: ``{file, text}``, or None.

    It is the longest line that the patch adds to a Python file and that occurs once there.
    ``package`` is the patched package; ``file`` is relative to it.
    """
    shows = [
        (len(text), text, name)
        for change in patch.changes
        if change.place["is"] == "package" and change.path.endswith(".py")
        for name in [change.path.removeprefix(ROOT)]
        for text in _only_once(change.added, package / name)
    ]
    if not shows:
        return None
    _, text, name = max(shows)
    return {"file": name, "text": text}


def _only_once(added: Iterable[str], file: Path) -> list[str]:
    """Return the lines of ``added`` that occur exactly once in a file, without indentation."""
    if not file.is_file():
        return []
    counts = Counter(line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [text for text in {line.strip() for line in added} if counts[text] == 1]
