"""Judge anybody's server by its log, and by its ``/server_info`` and traces where there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bringup.artifact import Document, document
from bringup.evidence.diagnosis import failure
from bringup.evidence.kernels import kernels_document
from bringup.evidence.observed import observe
from bringup.evidence.server import as_it_turned_out, asked_of

SCHEMA = "evidence/1"


def examine(
    log: Path, server_info: Mapping[str, Any] | None = None, traces: Sequence[Path] = ()
) -> Document:
    """Return all that can be told of a server that we did not start.

    Returns:
        ``outcome``: ``ready | failed | unfinished``; ``failure``: a reason or None; ``backends`` of
        ``experts``, ``attention`` and ``dense``: asked, resolved, used, verdict, evidence;
        ``asked_from``: how far to trust asked (see `asked_of`); ``kernels``: the document of the
        traces or None; and what `server_document` holds.

    Raises:
        OSError: a file cannot be read.
    """
    info = server_info or {}
    observed = observe(log)
    why = failure(log)
    told = as_it_turned_out(asked_of(info, observed), info, {}, observed)
    kernels = kernels_document(traces, told, experiment=log.stem, boot=None) if traces else None
    return document(
        SCHEMA,
        "ok" if why is None else "failed",
        why,
        outcome=_outcome(why),
        failure=why,
        version=info.get("version"),
        asked_from="launch command" if info.get("launch_command") else "echo in the log",
        **(told if kernels is None else {**told, "backends": kernels["backends"]}),
        kernels=kernels,
    )


def _outcome(why: Document | None) -> str:
    if why is None:
        return "ready"
    return "unfinished" if why["class"] == "unfinished" else "failed"
