"""Safetensors files of any shape: the header is real, the data is a hole in the file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

BITS = {"F4": 4, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2": 8, "BF16": 16, "F16": 16,
        "F32": 32, "I32": 32, "I64": 64}  # fmt: skip

Tensors = Mapping[str, tuple[str, list[int]]]
"""name → (dtype, shape)"""


def header(tensors: Tensors) -> tuple[dict[str, object], int]:
    """Return the header of ``tensors`` laid end to end, and the bytes of their data."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    return entries, at


def write(path: Path, tensors: Tensors) -> Path:
    """Write a file that holds ``tensors``, all zero."""
    entries, size = header(tensors)
    return write_raw(path, json.dumps(entries).encode(), size)


def write_raw(path: Path, text: bytes, size: int, *, length: int | None = None) -> Path:
    """Write a file with the header ``text``, said to be ``length`` long, and ``size`` bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write((len(text) if length is None else length).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)
    return path


def write_folder(folder: Path, config: object, tensors: Tensors, **files: object) -> Path:
    """Write a checkpoint of one shard; ``files`` are more JSON files, named with ``_`` for dots."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    if tensors:
        write(folder / "model.safetensors", tensors)
    return folder
