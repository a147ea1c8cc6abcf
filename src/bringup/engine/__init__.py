"""Engines: builds of SGLang, with patches, that prove what they are.

An engine is a base (a release, a git ref over the nearest release's compiled parts, or an
interpreter that exists) and patches in order.  `build` makes it and asks it, in its own
interpreter, what it is; `worker.ask` asks it more.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bringup import artifact, paths
from bringup.artifact import Document
from bringup.engine import assembly, environment, proof, worker
from bringup.engine.base import BaseRefusedError

SCHEMA = "engine/1"


def build(entry: dict[str, Any], *, engine_name: str, cuda: bool, log: Path) -> Document:
    """Build an engine and return its document.

    Args:
        entry: its entry in the config: ``version``, ``git`` or ``python``, and ``patches``.
        engine_name: its name in the config.
        cuda: this host has CUDA; without it, a stand-in for ``sgl_kernel`` goes on the path.
        log: the stage's log; what the engine's process prints goes beside it.

    Returns:
        The document, ``failed`` when a patch did not come to be in the tree or when the build
        can't be imported: that is how this engine is, and trying again would not change it.

    Raises:
        environment.EnvironmentUnusableError: the base could not be had.
        ConnectionError: a patch or a git ref could not be fetched, and no copy is cached.
        worker.EngineSilentError: its process gave no answer.
    """
    try:
        built = assembly.assemble(entry)
    except BaseRefusedError as refused:
        return _refused(engine_name, refused, cuda=cuda)
    document = artifact.document(
        SCHEMA,
        engine=engine_name,
        base=built.base,
        patches=[_described(attempt) for attempt in built.attempts],
        python=paths.portable(built.python),
        pythonpath=[paths.portable(each) for each in _pythonpath(built, cuda=cuda)],
        stand_in=not cuda,
        **_NOT_INSPECTED,
    )
    for attempt in built.attempts:
        said = f"{attempt.name}: {attempt.outcome.result}: {attempt.outcome.message}"
        print("\n    ".join([said, *attempt.outcome.excerpt]))
    if failure := built.failure:
        return {**document, "status": "failed", "reason": failure}
    answer = worker.ask(
        document,
        {"command": "inspect", "markers": built.markers},
        log=log.with_name(f"{log.stem}.engine.log"),
    )
    if not answer["ok"]:
        cause = artifact.reason(
            "engine-not-importable",
            f"its interpreter cannot import this SGLang: {answer['error']}",
            evidence=answer["output"],
            hint="a patch may need another base, or this host lacks what the release needs",
        )
        return {**document, "status": "failed", "reason": cause}
    return _proven(document, answer, built)


def restore(document: Document) -> None:
    """Make again what an engine document names, where it was deleted from the cache since.

    Raises:
        environment.EnvironmentUnusableError: the base could not be had, or is another one now.
        ConnectionError: a patch or a git ref could not be fetched, and no copy is cached.
    """
    if document["status"] != "ok" or _whole(document):
        return
    base = document["base"]
    git = {"git": {key: base["git"][key] for key in ("url", "ref")}} if "git" in base else base
    assembly.assemble({**git, "patches": [patch["source"] for patch in document["patches"]]})
    if not _whole(document):
        raise environment.EnvironmentUnusableError(
            f"engine {document['engine']} can't be made again as it was: remove its engine.json"
        )


def _whole(document: Document) -> bool:
    """Tell whether everything that an engine's processes start with is there."""
    python = paths.actual(document["python"])
    made_here = document["python"].startswith("{cache}/envs/")
    finished = not made_here or (python.parents[1] / environment.RECEIPT).is_file()
    return finished and all(
        paths.actual(each).exists()
        for each in (document["python"], document["file"], *document["pythonpath"])
    )


def _refused(engine_name: str, refused: BaseRefusedError, *, cuda: bool) -> Document:
    """Return the document of an engine that has no base."""
    cause = artifact.reason(
        f"base-{refused.outcome.result}", str(refused), evidence=refused.outcome.excerpt
    )
    return artifact.document(
        SCHEMA,
        "failed",
        cause,
        engine=engine_name,
        base=refused.description,
        patches=[],
        python=None,
        pythonpath=[],
        stand_in=not cuda,
        **_NOT_INSPECTED,
    )


_NOT_INSPECTED: Document = {
    "version": None,
    "file": None,
    "tree": None,
    "freeze": None,
    "packages": {},
    "torch_cuda": None,
    "choices": {},
    "flags": [],
    "renamed": {},
    "removed": {},
}


def _pythonpath(built: assembly.Assembly, *, cuda: bool) -> list[Path]:
    overlays = [built.overlay] if built.overlay else []
    return overlays if cuda else [*overlays, environment.STAND_IN]


def _described(attempt: assembly.Attempt) -> Document:
    """Return what the document says of one patch."""
    changes = attempt.patch.changes if attempt.patch else []
    used = [change for change in changes if change.place["is"] == "package"]
    return {
        "source": attempt.source,
        "outcome": attempt.outcome.result,
        "message": attempt.outcome.message,
        "sha256": attempt.patch.sha256 if attempt.patch else None,
        "pins": attempt.patch.pins if attempt.patch else {},
        "files": [change.path for change in used],
        "hunks": sum(change.hunks for change in used),
        "skipped": [
            {"file": change.path, "is": change.place["what"]}
            for change in changes
            if change.place["is"] == "skipped"
        ],
        "excerpt": list(attempt.outcome.excerpt),
        "marker": attempt.marker,
    }


def _proven(document: Document, answer: Document, built: assembly.Assembly) -> Document:
    """Return the document with what the engine's interpreter says, if that is what was built."""
    file = Path(answer["file"])
    proven = {
        **document,
        **{key: answer[key] for key in _TOLD},
        "file": paths.portable(file),
        "renamed": renamed(answer["flags"]),
        "removed": removed(answer["flags"]),
    }
    missing = [
        marker["file"]
        for marker, found in zip(built.markers, answer["markers"], strict=True)
        if not found
    ]
    if not file.is_relative_to(built.package) or missing:
        cause = artifact.reason(
            "another-sglang-imported",
            f"its interpreter imports {proven['file']}, not the package that was patched",
            evidence=[f"no marker of the patch in {name}" for name in missing],
            hint="an editable install or a PYTHONPATH in the interpreter's site may come first",
        )
        return {**proven, "status": "failed", "reason": cause}
    return proven


_TOLD = ("version", "tree", "freeze", "packages", "torch_cuda", "choices", "flags")
"""What a document takes from its interpreter's answer as it is."""


def renamed(flags: Collection[str]) -> dict[str, str]:
    """Return the flags that a build with ``flags`` knows by another name: other → its own."""
    pairs = [(row["old"], row["new"]) for row in _flag_table()["renamed"]]
    pairs += [(new, old) for old, new in pairs]
    return {other: own for other, own in pairs if other not in flags and own in flags}


def removed(flags: Collection[str]) -> dict[str, str | None]:
    """Return the server flags that a build with ``flags`` has no more: flag → what says it now."""
    table = _flag_table()["removed"]
    return {flag: now for flag, now in table.items() if flag not in flags}


@cache
def _flag_table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("renamed_flags.yaml").read_text(encoding="utf-8")
    )
    return table


__all__ = ["SCHEMA", "build", "proof", "removed", "renamed", "restore", "worker"]
