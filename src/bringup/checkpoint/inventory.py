"""Read a checkpoint's metadata: small JSON files and tensor headers, never weights."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from bringup import artifact, paths
from bringup.artifact import Document
from bringup.checkpoint.errors import UnusableError
from bringup.checkpoint.headers import ReadRange, Summary, Tensor, read_header
from bringup.checkpoint.selection import SAFETENSORS, File, Selection, select

SCHEMA = "metadata/1"

LARGEST_CONFIG = 16 * 2**20
"""Bytes of a small file; lists of 33,000 quantized modules, the longest published, take 3 MB."""

LARGEST_INDEX = 64 * 2**20
"""Bytes of an index; those of a few 100,000 tensors take 30 MB."""

GGUF = b"GGUF"
"""What a GGUF file begins with."""

READERS = 8
"""Headers read at once; the same number of connections that huggingface_hub uses by default."""


class Source(Protocol):
    """Where the files of a checkpoint are."""

    def source(self) -> dict[str, Any]:
        """Return where the checkpoint comes from, as documents hold it."""

    def files(self) -> list[File]:
        """List the files."""

    def fetch(self, file: File) -> Path:
        """Bring a small file here and return where it lies."""

    def reader(self, file: File) -> AbstractContextManager[ReadRange]:
        """Open ``file`` for reading parts of it."""


def read(source: Source, *, name: str, code: bool) -> Document:
    """Read what ``source`` says of itself and put copies of the small files into the cache.

    Args:
        source: the folder or repository.
        name: the checkpoint's name in the config.
        code: whether the config allows remote code.

    Raises:
        UnusableError: the checkpoint is damaged or incomplete.
        UnreachableError: it can't be read now.
    """
    listed = source.files()
    first = select(listed, code=code)
    texts = {file.name: _text(source, file) for file in first.configs}
    parsed = {name: _object(name, text) for name, text in texts.items()}
    weight_maps = {name: _weight_map(name, each) for name, each in parsed.items() if _index(name)}
    chosen = select(listed, code=code, indexed={*_shards(weight_maps)})
    _check_whole(chosen, parsed, weight_maps, listed)
    code_texts = {file.name: _text(source, file) for file in chosen.code}
    summary, data = _headers(source, chosen)
    hashes = {name: _sha256(text) for name, text in {**texts, **code_texts}.items()}
    folder, headers = _store(
        {name: text for name, text in {**texts, **code_texts}.items() if not _index(name)}, summary
    )
    return artifact.document(
        SCHEMA,
        checkpoint=name,
        source=source.source(),
        kind=chosen.kind,
        files=[
            {"name": file.name, "size": file.size, "sha256": file.sha256 or hashes.get(file.name)}
            for file in chosen.all
        ],
        weights_bytes=_total(chosen.weights),
        json_hashes={name: hashes[name] for name in sorted(parsed)},
        remote_code=[{"name": name, "sha256": hashes[name]} for name in sorted(code_texts)],
        configs=paths.portable(folder),
        headers=paths.portable(headers) if headers else None,
        notes=[*_stale_totals(parsed, data), *_unasked_code(parsed, code)],
    )


def failed(source: Mapping[str, Any], *, name: str, error: UnusableError) -> Document:
    """Return the document of a checkpoint that can't be used."""
    return artifact.document(
        SCHEMA,
        "failed",
        artifact.reason("checkpoint", str(error), hint="fetch or copy the named file again"),
        checkpoint=name,
        source=dict(source),
        kind=None,
        files=[],
        weights_bytes=None,
        json_hashes={},
        remote_code=[],
        configs=None,
        headers=None,
        notes=[],
    )


def _text(source: Source, file: File) -> bytes:
    largest = LARGEST_INDEX if _index(file.name) else LARGEST_CONFIG
    if file.size > largest:
        raise UnusableError(
            f"{file.name}: {file.size:,} bytes; a file of this name has at most {largest:,}"
        )
    return source.fetch(file).read_bytes()


def _object(name: str, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
        if b"\\u" in text:  # half of a surrogate pair can't be written into documents
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"{name}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnusableError(f"{name}: holds a {type(found).__name__}, not an object")
    return found


def _index(name: str) -> bool:
    return name.endswith(".index.json")


def _weight_map(name: str, index: dict[str, Any]) -> dict[str, str]:
    found = index.get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise UnusableError(f"{name}: no `weight_map` from tensors to files")
    return found


def _shards(weight_maps: Mapping[str, dict[str, str]]) -> Iterator[str]:
    for weight_map in weight_maps.values():
        yield from set(weight_map.values())


def _check_whole(
    chosen: Selection,
    parsed: Mapping[str, Any],
    weight_maps: Mapping[str, dict[str, str]],
    listed: list[File],
) -> None:
    """Check that there is a config and, where there are weights, every file of the index."""
    if "config.json" not in parsed and chosen.kind != "gguf":
        found = ", ".join(sorted(file.name for file in listed)[:5]) or "nothing"
        raise UnusableError(f"no config.json: not a checkpoint's folder (it holds {found})")
    present = {file.name for file in chosen.weights}
    if not present:
        return
    for name, weight_map in weight_maps.items():
        missing = sorted(set(weight_map.values()) - present)
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise UnusableError(f"{name} names {', '.join(missing[:3])}{more}: not there")


def _headers(source: Source, chosen: Selection) -> tuple[Summary | None, dict[str, int]]:
    """Return the summary of all headers, and the bytes of data of each weight file."""
    if chosen.kind == "gguf":
        _check_gguf(source, chosen.weights)
    if chosen.kind != SAFETENSORS:
        return None, {}

    def header(file: File) -> dict[str, Tensor]:
        with source.reader(file) as read:
            return read_header(read, file.size, file.name)

    summary = Summary()
    data: dict[str, int] = {}
    with ThreadPoolExecutor(READERS) as pool:
        # One at a time is folded and dropped: all headers at once would be large.
        pending = [(file, pool.submit(header, file)) for file in chosen.weights]
        pending.reverse()
        try:
            while pending:
                file, future = pending.pop()
                tensors = future.result()
                summary.add(file.name, tensors)
                data[file.name] = max((end for *_, end in tensors.values()), default=0)
        finally:
            pool.shutdown(cancel_futures=True)
    return summary, data


def _check_gguf(source: Source, files: list[File]) -> None:
    for file in files:
        with source.reader(file) as read:
            if read(0, len(GGUF)) != GGUF:
                raise UnusableError(f"{file.name}: doesn't begin as a GGUF file does")


def _store(texts: Mapping[str, bytes], summary: Summary | None) -> tuple[Path, Path | None]:
    """Put the small files into a folder of the cache that is named after their content."""
    contents = dict(texts)
    if summary is not None:
        document = summary.document()
        contents["headers.json"] = json.dumps(document, separators=(",", ":")).encode()
    digest = hashlib.sha256()
    for name in sorted(contents):
        digest.update(f"{name} {_sha256(contents[name])}\n".encode())
    folder = paths.cache() / "metadata" / digest.hexdigest()[:32]
    for name, content in contents.items():
        target = folder / "files" / name if name != "headers.json" else folder / name
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            draft.write_bytes(content)
            draft.replace(target)
    return folder / "files", folder / "headers.json" if summary is not None else None


def _stale_totals(parsed: Mapping[str, Any], data: Mapping[str, int]) -> Iterator[str]:
    """Tell of an index whose total isn't that of the files; such are published, and work."""
    for name, index in parsed.items():
        details = index.get("metadata") if _index(name) else None
        stated = details.get("total_size") if isinstance(details, dict) else None
        files = set(_weight_map(name, index).values()) if _index(name) else set()
        real = sum(data.get(file, 0) for file in files)
        if isinstance(stated, int | float) and real and stated != real:
            yield f"{name} says total_size {stated:,}, the headers say {real:,}: it is stale"


def _unasked_code(parsed: Mapping[str, Any], code: bool) -> Iterator[str]:
    if not code and parsed.get("config.json", {}).get("auto_map"):
        yield "config.json names code in the repository (auto_map); it is neither fetched nor run"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _total(files: list[File]) -> int:
    return sum(file.size for file in files)
