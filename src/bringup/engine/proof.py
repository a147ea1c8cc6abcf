"""What a running server of an engine imports.

A server's own process says with which interpreter and path it was started; the package, its tree
and the patches' lines in it are what that interpreter imports from that path.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from bringup import artifact, paths
from bringup.artifact import Document
from bringup.engine import worker


def found(document: Document, *, log: Path) -> Document:
    """Return what an engine's interpreter imports as ``sglang`` from the engine's path.

    It reads the whole package, so it is best asked while a server loads.

    Args:
        document: the engine's.
        log: where what the interpreter prints goes.

    Returns:
        ``file``, ``tree`` and ``markers`` (those of the patches, each with ``found``).

    Raises:
        worker.EngineSilentError: the engine's process gave no answer.
    """
    markers = [patch["marker"] for patch in document["patches"] if patch["marker"]]
    answer = worker.ask(document, {"command": "locate", "markers": markers}, log=log)
    if not answer["ok"]:
        raise worker.EngineSilentError(
            f"engine {document['engine']}: it can't be imported any more: {answer['error']}"
        )
    return {
        "file": paths.portable(answer["file"]),
        "tree": answer["tree"],
        "markers": [
            {**marker, "found": is_there}
            for marker, is_there in zip(markers, answer["markers"], strict=True)
        ],
    }


def running(document: Document, pid: int, imports: Document) -> Document:
    """Return what the server process ``pid`` imports as ``sglang``.

    Args:
        document: the engine's.
        pid: the server's first process, which must be alive.
        imports: what the engine's own interpreter `found`.

    Returns:
        ``python`` and ``pythonpath`` of the process, and what was ``found``.  Where the process has
        another interpreter or path than the engine, nobody knows what it imports: ``file`` and
        ``tree`` are None, ``markers`` empty.
    """
    process = psutil.Process(pid)
    python, path = process.cmdline()[0], process.environ().get("PYTHONPATH") or ""
    started = {
        "python": paths.portable(python),
        "pythonpath": [paths.portable(each) for each in path.split(os.pathsep) if each],
    }
    if any(started[key] != document[key] for key in started):
        return {**started, "file": None, "tree": None, "markers": []}
    return {**started, **imports}


def refusal(document: Document, imports: Document) -> Document | None:
    """Return the reason why what a server ``imports`` is not its engine, None where it is."""
    missing = [marker["file"] for marker in imports["markers"] if not marker["found"]]
    same = all(imports[key] == document[key] for key in ("file", "tree"))
    if same and not missing:
        return None
    what = imports["file"] or f"with {imports['python']} from {imports['pythonpath']}"
    return artifact.reason(
        "another-sglang-imported",
        f"the server imports {what}; its engine {document['engine']} is another tree",
        evidence=[f"no marker of the patch in {name}" for name in missing],
        hint="something changed the engine's files since it was built: remove its engine.json",
    )
