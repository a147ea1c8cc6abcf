"""Put an engine together: its base, and its patches in order on an overlay of the base."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bringup import artifact, paths
from bringup.artifact import Document
from bringup.engine import overlay, sources, upstream
from bringup.engine.base import Base, find
from bringup.engine.patches import DONE, Outcome, Patch, marker, named
from bringup.resident import locked

OUTCOMES = "outcomes.json"
"""Beside an overlay: what came of its patches.  Written last: without it, it is made again."""


@dataclass(frozen=True)
class Attempt:
    """One patch, what came of it, and the line by which it shows."""

    source: dict[str, Any]
    outcome: Outcome
    patch: Patch | None = None
    marker: dict[str, str] | None = None

    @property
    def name(self) -> str:
        return named(self.source)


@dataclass(frozen=True)
class Assembly:
    """An engine that is ready to be asked, or the reason why not.

    Attributes:
        base: as the document describes it.
        python: the interpreter.
        package: the ``sglang`` folder that must be the one imported.
        overlay: the folder to put first on the path, or None where the base serves as it is.
        attempts: the patches that were tried, up to the first that failed.
    """

    base: Document
    python: Path
    package: Path
    overlay: Path | None
    attempts: list[Attempt]

    @property
    def markers(self) -> list[dict[str, str]]:
        return [attempt.marker for attempt in self.attempts if attempt.marker]

    @property
    def failure(self) -> Document | None:
        """The reason why there is no such engine, or None."""
        for attempt in self.attempts:
            if attempt.outcome.result not in DONE:
                return artifact.reason(
                    f"patch-{attempt.outcome.result}",
                    f"{attempt.name}: {attempt.outcome.message}",
                    evidence=attempt.outcome.excerpt,
                )
        return None


def assemble(entry: dict[str, Any]) -> Assembly:
    """Put the engine of a config entry together.

    Raises:
        environment.EnvironmentUnusableError: the base could not be had.
        BaseRefusedError: the base is there, and no engine can be made of it.
        ConnectionError: the base or a patch could not be fetched, and no copy is cached.
    """
    base = find(entry)
    return patched(base, [_at_hand(source, base) for source in entry.get("patches", [])])


def _at_hand(source: dict[str, Any], base: Base) -> Patch | Attempt:
    """Return the patch that an entry asks for, or what came of it where it need not be tried."""
    if "pr" in source and source.get("repo", sources.REPOSITORY) == sources.REPOSITORY:
        version = base.description.get("version")
        if known := upstream.merged(source["pr"], version, base.package):
            message = f"{known.why}: it can be retired from the list of patches"
            return Attempt(source, Outcome("already-in-tree", message), marker=known.marker)
    got = sources.fetch(source)
    if isinstance(got, Patch):
        return got
    if got.transient:
        raise ConnectionError(f"{named(source)}: {got.message}")
    return Attempt(source, got)


def patched(base: Base, items: list[Patch | Attempt]) -> Assembly:
    """Return ``base`` with patches in order.

    An attempt among ``items`` is a patch that needs no trying; if it is a failure, nothing is
    tried.  The overlay is kept in the cache by what is in it, and found there the next time.
    """
    for item in items:
        if isinstance(item, Attempt) and item.outcome.result not in DONE:
            return Assembly(base.description, base.python, base.package, base.overlay, [item])
    wanted = [item for item in items if isinstance(item, Patch)]
    tried, overlaid = _overlaid(base, wanted) if wanted else ([], None)
    left = iter(tried)
    attempts: list[Attempt] = []
    for item in items:
        attempt = item if isinstance(item, Attempt) else next(left)
        attempts.append(attempt)
        if attempt.outcome.result not in DONE:
            break
    package = overlaid / "sglang" if overlaid else base.package
    return Assembly(base.description, base.python, package, overlaid or base.overlay, attempts)


def _overlaid(base: Base, wanted: list[Patch]) -> tuple[list[Attempt], Path | None]:
    """Return what came of each patch, and the overlay where it is needed."""
    whole = "\n".join([base.key, *(patch.sha256 for patch in wanted)])
    folder = paths.cache() / "overlays" / hashlib.sha256(whole.encode()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not (folder / OUTCOMES).is_file():
            _make_overlay(base, wanted, folder)
    kept = json.loads((folder / OUTCOMES).read_text(encoding="utf-8"))
    attempts = [
        Attempt(
            patch.source,
            Outcome(**{**record["outcome"], "excerpt": tuple(record["outcome"]["excerpt"])}),
            patch,
            record["marker"],
        )
        for patch, record in zip(wanted, kept, strict=False)
    ]
    return attempts, folder if (folder / "sglang").is_dir() else None


def _make_overlay(base: Base, wanted: list[Patch], folder: Path) -> None:
    """Make an overlay and note what came of each patch, up to the first that failed.

    Where nothing had to be changed, or a patch failed, only the note is kept.
    """
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / "sglang"
    overlay.link_tree(base.package, package)
    outcomes: list[Outcome] = []
    for patch in wanted:
        outcomes.append(overlay.apply(patch, package))
        if outcomes[-1].result not in DONE:
            break
    records = [
        {"outcome": asdict(outcome), "marker": marker(patch, package)}
        for outcome, patch in zip(outcomes, wanted, strict=False)
    ]
    results = {outcome.result for outcome in outcomes}
    if results == {"already-in-tree"} or not results <= DONE:
        shutil.rmtree(package)
    draft = folder / f"{OUTCOMES}.draft"
    draft.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / OUTCOMES)
