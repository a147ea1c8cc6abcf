"""Time and measure what a pull request as a patch costs, on a repository of SGLang's shape.

``python benchmarks/patch.py [--commits N]`` makes a repository with 4,700 Python files (60 MB) and
a history of N commits, opens a pull request 200 commits back, and compares fetching it as an engine
does with a full clone: seconds, and bytes kept on the disk.  Then it puts ten engines with one
patch each on one installed package.  Exit code 1 if an overlay takes more than 60 MiB or 5 s.
"""

from __future__ import annotations

import argparse
import os
import random
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bringup.engine import overlay, sources
from bringup.engine.patches import Patch

FILES = 4700
LINES = 260
BEHIND = 200
MIB = 1 << 20
MOST_MIB, MOST_S = 60, 5.0
ENGINES = 10


def content(name: int, chance: random.Random) -> str:
    """Return a file of about 13 kB that does not compress better than code does."""
    words = [f"name_{chance.randrange(5000)}" for _ in range(3 * LINES)]
    lines = (
        f"    {words[3 * i]} = {words[3 * i + 1]}.{words[3 * i + 2]}({i})" for i in range(LINES)
    )
    return f"def function_{name}():\n" + "\n".join(lines) + "\n"


def path(number: int) -> str:
    """Return a file's path: some two hundred folders, as in the package."""
    return f"python/sglang/srt/part_{number % 200}/file_{number}.py"


def history(commits: int) -> Iterator[str]:
    """Yield a stream for ``git fast-import``: main, and pull request 1."""
    chance = random.Random(1)
    texts = {number: content(number, chance) for number in range(FILES)}
    texts[FILES] = "__version__ = '0.5.23'\n"
    yield "reset refs/heads/main\n"
    yield from commit("main", texts, 0, None)
    for number in range(1, commits):
        if number == commits - BEHIND:
            yield "reset refs/pull/1/head\nfrom refs/heads/main\n\n"
        changed = {which: content(which, chance) for which in chance.sample(range(100, FILES), 3)}
        yield from commit("main", changed, number, None)
    changed = {number: texts[number].replace("(100)", "(1000)") for number in range(10)}
    yield from commit("pull", changed, commits, "refs/pull/1/head")


def commit(text: str, files: dict[int, str], when: int, ref: str | None) -> Iterator[str]:
    """Yield one commit."""
    yield f"commit {ref or 'refs/heads/main'}\n"
    yield f"committer a <a@example.org> {1_700_000_000 + 60 * when} +0000\n"
    yield f"data {len(text)}\n{text}\n"
    for number, body in files.items():
        name = "python/sglang/__init__.py" if number == FILES else path(number)
        yield f"M 100644 inline {name}\ndata {len(body)}\n{body}\n"


def size(folder: Path) -> float:
    """Return the MiB that a folder takes, a file with several names once."""
    seen = {(s.st_dev, s.st_ino): s.st_blocks * 512 for s in map(os.lstat, walk(folder))}
    return sum(seen.values()) / MIB


def own_size(folder: Path) -> float:
    """Return the MiB that only this folder takes: without files that have another name."""
    return (
        sum(
            s.st_blocks * 512
            for s in map(os.lstat, walk(folder))
            if s.st_nlink == 1 or stat.S_ISDIR(s.st_mode)
        )
        / MIB
    )


def walk(folder: Path) -> Iterator[Path]:
    """Yield everything below ``folder``."""
    yield folder
    yield from folder.rglob("*")


def main() -> int:
    """Make the repository, fetch from it in both ways, make the overlays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=4000)
    commits = parser.parse_args().commits
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["BRINGUP_CACHE"] = str(folder / "cache")
        sources.HOST = folder.as_uri()
        upstream = folder / sources.REPOSITORY
        make(upstream, commits)
        print(f"repository: {FILES:,} files, {commits:,} commits, {size(upstream):.0f} MiB")

        started = time.perf_counter()
        clone = ["git", "clone", "--quiet", upstream.as_uri(), str(folder / "clone")]
        subprocess.run(clone, check=True)
        clone_s, clone_mib = time.perf_counter() - started, size(folder / "clone")

        started = time.perf_counter()
        patch = sources.fetch({"pr": 1})
        fetch_s, fetch_mib = time.perf_counter() - started, size(folder / "cache")
        assert isinstance(patch, Patch), patch
        assert len(patch.changes) == 10
        print(f"full clone:   {clone_s:6.1f} s {clone_mib:7.1f} MiB")
        print(f"pull request: {fetch_s:6.1f} s {fetch_mib:7.1f} MiB")
        print(f"ratio:        {fetch_s / clone_s:6.2f}   {fetch_mib / clone_mib:7.3f}")
        return overlays(folder, patch)


def make(folder: Path, commits: int) -> None:
    """Make the repository, served with filters as code hosts do."""
    subprocess.run(["git", "init", "--quiet", "-b", "main", str(folder)], check=True)
    stream = "".join(history(commits)).encode()
    subprocess.run(["git", "fast-import", "--quiet"], cwd=folder, input=stream, check=True)
    for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        subprocess.run(["git", "config", key, "true"], cwd=folder, check=True)


def overlays(folder: Path, patch: Patch) -> int:
    """Put the patch on ten overlays of one installed package; return the exit code."""
    installed = folder / "clone/python/sglang"
    worst_s = worst_mib = 0.0
    for number in range(ENGINES):
        package = folder / f"overlay-{number}/sglang"
        started = time.perf_counter()
        overlay.link_tree(installed, package)
        outcome = overlay.apply(patch, package)
        worst_s = max(worst_s, time.perf_counter() - started)
        assert outcome.result in ("applied", "applied-3way"), outcome
        worst_mib = max(worst_mib, own_size(package))
    print(f"{ENGINES} overlays: at worst {worst_s:.1f} s and {worst_mib:.1f} MiB each")
    return int(worst_s > MOST_S or worst_mib > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
