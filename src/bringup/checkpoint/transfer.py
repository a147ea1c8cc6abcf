"""The document of a checkpoint's files: here, and verified."""

from __future__ import annotations

from bringup import artifact, paths
from bringup.artifact import Document
from bringup.checkpoint.errors import UnusableError
from bringup.checkpoint.selection import File
from bringup.checkpoint.verify import in_place

SCHEMA = "weights/1"


def bring(metadata: Document) -> Document:
    """Return the document of the files that ``metadata`` names, here and verified.

    Raises:
        UnusableError: a file of a local folder is damaged.
        UnreachableError: the hub, the network or the disk; what is here already stays.
    """
    source = metadata["source"]
    files = [File(each["name"], each["size"], each["sha256"]) for each in metadata["files"]]
    if metadata["kind"] is None:
        where = source.get("path") or source["repo"]
        raise UnusableError(f"{where}: no weights (no *.safetensors, *.bin, *.gguf)")
    if "path" in source:
        snapshot, digests = source["path"], in_place(source["path"], files)
    else:
        from bringup.checkpoint.download import download  # a second to import, for the hub only

        link, digests = download(source, files)
        snapshot = paths.portable(link)
    return artifact.document(
        SCHEMA,
        checkpoint=metadata["checkpoint"],
        snapshot=snapshot,
        draft=None,
        files=[{"name": f.name, "size": f.size, "sha256": digests[f.name]} for f in files],
        bytes=sum(file.size for file in files),
    )


def failed(metadata: Document, error: UnusableError) -> Document:
    """Return the document of a checkpoint whose files are damaged."""
    hint = "copy the named file again, then remove this checkpoint's metadata.json"
    return artifact.document(
        SCHEMA,
        "failed",
        artifact.reason("checkpoint", str(error), hint=hint),
        checkpoint=metadata["checkpoint"],
        snapshot=None,
        draft=None,
        files=[],
        bytes=None,
    )
