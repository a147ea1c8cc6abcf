"""Checkpoints: what they say of themselves before the download, and their weights, verified.

``metadata`` reads small JSON files and tensor headers; ``weights`` brings the files here and checks
them.  Both return documents (docs/design.md §4) that are the same bytes whenever the content is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup import artifact
from bringup.artifact import Document
from bringup.checkpoint import inventory, transfer
from bringup.checkpoint.errors import UnreachableError, UnusableError
from bringup.checkpoint.folder import Folder, is_path
from bringup.checkpoint.headers import TensorGroup, groups_of

__all__ = [
    "WEIGHTS_SCHEMA",
    "TensorGroup",
    "UnreachableError",
    "UnusableError",
    "groups_of",
    "is_path",
    "metadata",
    "weights",
]

WEIGHTS_SCHEMA = transfer.SCHEMA

Entry = Mapping[str, Any]
"""A checkpoint's entry in the config: ``path``, or ``repo`` and ``revision``; and whether to
``trust-remote-code``."""


def metadata(entry: Entry, *, name: str) -> Document:
    """Read a checkpoint's metadata: small JSONs, and tensor headers by range; never weights.

    Args:
        entry: the checkpoint's entry in the config.
        name: its name there.

    Returns:
        The document ``metadata/1``; its status is ``failed`` where the checkpoint can't be used.

    Raises:
        UnreachableError: the hub, the network, the disk or a right is missing; one line says which.
    """
    source = _source(entry)
    try:
        return inventory.read(source, name=name, code=allows_code(entry))
    except UnusableError as error:
        return inventory.failed(source.source(), name=name, error=error)


def allows_code(entry: Entry) -> bool:
    """Whether the entry allows code of the checkpoint to be fetched and run."""
    return bool(entry.get("trust-remote-code"))


def weights(metadata: Document, draft: Document | None = None) -> Document:
    """Bring the files that ``metadata`` names here, into the hub's cache, and verify them.

    Args:
        metadata: of the checkpoint to serve.
        draft: metadata of the checkpoint that drafts for it, if one does.

    Files of a local folder are verified in place.  Files that are here are not fetched again, and
    not hashed again unless they changed; finished files survive an interruption.

    Returns:
        The document ``weights/1``; ``snapshot`` is the folder to serve, ``draft`` that of the
        draft.  Its status is ``failed`` where a local file is damaged.

    Raises:
        UnreachableError: the hub, the network, the disk or a right is missing; one line says which.
    """
    if cause := artifact.stopping(metadata, *([draft] if draft else [])):
        return artifact.skipped(WEIGHTS_SCHEMA, cause)
    try:
        served = transfer.bring(metadata)
    except UnusableError as error:
        return transfer.failed(metadata, error)
    try:
        return served | {"draft": transfer.bring(draft)["snapshot"] if draft else None}
    except UnusableError as error:
        return transfer.failed(draft or metadata, error)


def _source(entry: Entry) -> inventory.Source:
    if "path" in entry:
        return Folder(entry["path"])
    from bringup.checkpoint import hub  # a second to import, which folders don't need

    return hub.resolve(entry["repo"], entry.get("revision") or "main")
