"""What no config entry uses any more: environments, checkpoints, results; listed, then removed.

    python -m bringup.housekeeping [--config FILE …] [--remove KIND …] [--json]

Lists by default; ``--remove environments results`` removes what was listed of these kinds.  Only
what this workflow made is ever listed: a file that it does not know by name stays, and so does
its folder.  Checkpoints lie in the hub's cache, which other programs use as well, so they are
those that this workflow fetched or found there for an experiment.

Exit code 0: done; 1: something is in use and was not removed; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import psutil

from bringup import artifact, paths, routing
from bringup.config import Config, ConfigError, load
from bringup.engine.environment import RECEIPT, Release
from bringup.resident import locked
from bringup.words import counted

Kind = Literal["environments", "checkpoints", "results"]
KINDS: tuple[Kind, ...] = ("environments", "checkpoints", "results")

CONFIG = Path("config/experiments.yaml")
RESULTS = Path("results")

STAGE_FILES = re.compile(
    r"(plan|weights|server|probe|kernels|predictions|reference|accuracy)\.json"
    r"|(metadata|format|engine)\.json|serve\.sh|patches(\..+)?\.log"
    r"|(boot\d+/)?server(\.\d+)?\.log|points/c\d+(\.boot\d+)?\.json|logs/.+"
)
"""Files that stages write below the folder of an experiment, checkpoint or engine."""

POINT = re.compile(r"c(?P<level>\d+)(\.boot(?P<boot>\d+))?\.json")


@dataclass(frozen=True)
class Unused:
    """Something that no config entry uses.

    Attributes:
        kind: which sort of thing it is.
        path: the folder or file.
        bytes: what removing it frees; files that others link to as well free nothing.
        why: what is missing in the config, in words.
        strange: files in it that this workflow did not make, and that therefore stay.
        besides: files elsewhere that go with it (a level's logs).
    """

    kind: Kind
    path: Path
    bytes: int
    why: str
    strange: tuple[str, ...] = ()
    besides: tuple[Path, ...] = ()


@dataclass(frozen=True)
class _Everything:
    """Holds every folder: a checkpoint's that is gone is no reason not to tidy up."""

    def __contains__(self, item: object) -> bool:
        return True


@dataclass(frozen=True)
class Uses:
    """What several configs use, taken together: a cache is often shared by checkouts."""

    configs: Sequence[Config]

    @classmethod
    def of(cls, files: Iterable[Path]) -> Uses:
        """Read the configs.

        Raises:
            ConfigError: one of them can't be used; then nothing can be said to be unused.
        """
        every = [name for arch in routing.architectures() for name in routing.backends(arch)]
        backends = list(dict.fromkeys(every))  # whatever machine the results came from
        return cls(
            [load(file, made=_Everything(), backends=lambda described: backends) for file in files]
        )

    @cached_property
    def engines(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (name, entry) of each engine."""
        return [pair for config in self.configs for pair in config.engines.items()]

    @cached_property
    def repositories(self) -> dict[str, list[str]]:
        """Return the names of checkpoints by hub repository."""
        found: dict[str, list[str]] = {}
        for config in self.configs:
            for name, entry in config.checkpoints.items():
                if "repo" in entry:
                    found.setdefault(entry["repo"], []).append(name)
        return found


def environments(uses: Uses) -> Iterator[Unused]:
    """Yield environments and patched trees of SGLang that no engine of a config starts with."""
    documents = {
        name: _read(RESULTS / "engines" / name / "engine.json") for name, _ in uses.engines
    }
    unknown = [name for name, entry in uses.engines if "git" in entry and not documents[name]]
    keys = {Release(str(entry["version"])).key for _, entry in uses.engines if "version" in entry}
    named = {
        str(paths.actual(each))
        for document in documents.values()
        for each in (document.get("python") or "", *(document.get("pythonpath") or ()))
        if each
    }
    envs = paths.cache() / "envs"
    for folder in _folders(envs):
        starts_one = any(each.startswith(f"{folder}{os.sep}") for each in named)
        finished = (folder / RECEIPT).is_file()
        if finished and not (folder.name in keys or starts_one or unknown):
            yield _folder("environments", folder, "no engine has this release")
    patched = any(entry.get("patches") for name, entry in uses.engines if not documents[name])
    for folder in _folders(paths.cache() / "overlays"):
        if not any(each.startswith(str(folder)) for each in named) and not (unknown or patched):
            yield _folder("environments", folder, "no engine has this base with these patches")


def checkpoints(uses: Uses) -> Iterator[Unused]:
    """Yield revisions in the hub's cache that experiments were run on, and that no entry names."""
    links = paths.cache() / "snapshots"
    commits = {
        name: _read(RESULTS / "checkpoints" / name / "metadata.json")
        .get("source", {})
        .get("commit")
        for names in uses.repositories.values()
        for name in names
    }
    named = {_flat(repo): names for repo, names in uses.repositories.items()}
    for link in sorted(links.glob("*/*")):
        names = named.get(link.parent.name, [])
        if any(commits[name] in (link.name, None) for name in names):
            continue
        why = (
            f"no checkpoint is at this revision: {', '.join(names)} moved on"
            if names
            else "no checkpoint has this repository"
        )
        yield Unused("checkpoints", link, _freed(link), why)


def results(config: Config) -> Iterator[Unused]:
    """Yield results whose experiment, checkpoint, engine, reading or level the config lacks."""
    for part, names in (
        ("experiments", config.experiments),
        ("checkpoints", config.checkpoints),
        ("engines", config.engines),
    ):
        for folder in _folders(RESULTS / part):
            if folder.name not in names:
                found = _result(folder, f"there is no {part[:-1]} {folder.name}")
                if len(found.strange) < len(list(_files(folder))):
                    yield found
    for name, entry in config.experiments.items():
        yield from _points(RESULTS / "experiments" / name / "points", entry["sweep"])
    pairs = {
        f"{entry[checkpoint]}--{entry['engine']}"
        for entry in config.experiments.values()
        for checkpoint in ("checkpoint", "draft")
        if entry.get(checkpoint)
    }
    for file in sorted((RESULTS / "readings").glob("*.json")):
        if file.stem not in pairs and _is_plain(file):
            yield Unused("results", file, file.stat().st_size, "no experiment has this pair")


def _points(folder: Path, sweep: Mapping[str, Any]) -> Iterator[Unused]:
    for file in sorted(folder.glob("c*.json")):
        found = POINT.fullmatch(file.name)
        if not found or not _is_plain(file):
            continue
        level, boot = int(found["level"]), int(found["boot"] or 1)
        if level not in sweep["concurrency"] or boot > sweep["boots"]:
            logs = tuple(filter(_is_plain, sorted((folder.parent / "logs").glob(f"{file.stem}.*"))))
            why = "the sweep does not have it"
            yield Unused("results", file, _size([file, *logs]), why, besides=logs)


def unused(uses: Uses) -> list[Unused]:
    """Return all that no entry uses; results are held against the first config only."""
    return [*environments(uses), *checkpoints(uses), *results(uses.configs[0])]


def remove(item: Unused) -> str | None:
    """Remove ``item``; return why not, if it is in use."""
    if item.kind == "environments":
        return _remove_environment(item.path)
    if item.kind == "checkpoints":
        return _remove_checkpoint(item.path)
    if item.path.is_file():
        for file in (item.path, *item.besides):
            file.unlink(missing_ok=True)  # a boot's logs are also its level's
        return None
    for file in _files(item.path):
        if STAGE_FILES.fullmatch(file.relative_to(item.path).as_posix()):
            file.unlink()
    for folder, _, _ in os.walk(item.path, topdown=False):
        if not any(Path(folder).iterdir()):
            Path(folder).rmdir()
    return None


def _remove_environment(folder: Path) -> str | None:
    with locked(folder.with_name(f"{folder.name}.lock")):
        if user := _user(folder):
            return f"process {user} runs from it"
        (folder / RECEIPT).unlink(missing_ok=True)  # half removed, it would pass for whole
        shutil.rmtree(folder)
    return None


def _remove_checkpoint(link: Path) -> str | None:
    snapshot = link.resolve()
    if strategy := _strategy(snapshot):
        strategy.execute()
    link.unlink()
    if not any(link.parent.iterdir()):
        link.parent.rmdir()
    return None


def _freed(link: Path) -> int:
    strategy = _strategy(link.resolve())
    return int(strategy.expected_freed_size) if strategy else 0


def _strategy(snapshot: Path) -> Any | None:
    """Return how the hub's client removes a revision, without files that others share; or None."""
    from huggingface_hub import CacheNotFound, scan_cache_dir  # only where there are checkpoints

    try:
        cache = scan_cache_dir(snapshot.parents[2])
    except (CacheNotFound, ValueError, IndexError):
        return None
    known = {
        revision.snapshot_path: revision for repo in cache.repos for revision in repo.revisions
    }
    revision = known.get(snapshot)
    return cache.delete_revisions(revision.commit_hash) if revision else None


def _user(folder: Path) -> int | None:
    """Return a process that runs from ``folder``."""
    for process in psutil.process_iter(["cmdline"]):
        if any(word.startswith(f"{folder}{os.sep}") for word in process.info["cmdline"] or ()):
            return int(process.pid)
    return None


def _folder(kind: Kind, folder: Path, why: str) -> Unused:
    return Unused(kind, folder, _size(_files(folder)), why)


def _result(folder: Path, why: str) -> Unused:
    files = list(_files(folder))
    ours = [f for f in files if STAGE_FILES.fullmatch(f.relative_to(folder).as_posix())]
    strange = tuple(str(file.relative_to(folder)) for file in files if file not in ours)
    return Unused("results", folder, _size(ours), why, strange)


def _folders(parent: Path) -> list[Path]:
    """Return the real folders right below ``parent``: what a link leads to is somebody else's."""
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def _size(files: Iterable[Path]) -> int:
    """Return the bytes on disk of files that nothing else links to."""
    states = [file.lstat() for file in files]
    return sum(state.st_blocks * 512 for state in states if state.st_nlink == 1)


def _read(path: Path) -> artifact.Document:
    try:
        return artifact.read(path)
    except (OSError, ValueError):
        return {}


def _flat(repo: str) -> str:
    return repo.replace("/", "--")


def table(items: Sequence[Unused], refused: Mapping[Path, str], *, removed: bool) -> str:
    """Return what is unused, or what has become of it, as text."""
    lines = []
    for item in items:
        fate = refused.get(item.path)
        stays = f"; stays: {', '.join(item.strange)}" if item.strange else ""
        kept = f"; kept: {fate}" if fate else ""
        lines.append(f"{_gb(item.bytes):>9}  {item.kind}  {item.path}  ({item.why}{stays}{kept})")
    freed = sum(item.bytes for item in items if item.path not in refused)
    if not items:
        return "Nothing is unused."
    done = "freed" if removed else "to be freed; nothing was removed (see --remove)"
    return "\n".join([*lines, f"{_gb(freed):>9}  {done}, {counted(len(items), 'item')}"])


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e3:.0f} kB"


def main(arguments: Sequence[str] | None = None) -> int:
    """List what is unused, or remove it."""
    parser = argparse.ArgumentParser(
        prog="python -m bringup.housekeeping", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        help="a config whose entries count; the first is that of results/; once for each checkout "
        "that shares the cache (default: config/experiments.yaml)",
    )
    parser.add_argument("--remove", nargs="+", choices=KINDS, default=[], metavar="KIND")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        uses = Uses.of(given.config or [CONFIG])
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    items = [item for item in unused(uses) if not given.remove or item.kind in given.remove]
    refused = {}
    if given.remove:
        refused = {item.path: why for item in items if (why := remove(item))}
    if given.json:
        rows = [
            {
                "kind": item.kind,
                "path": str(item.path),
                "bytes": item.bytes,
                "why": item.why,
                "stays": list(item.strange),
                "removed": bool(given.remove) and item.path not in refused,
            }
            for item in items
        ]
        print(json.dumps(rows, indent=2))
    else:
        print(table(items, refused, removed=bool(given.remove)))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
