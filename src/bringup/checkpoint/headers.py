"""Safetensors headers: read within limits, checked, and folded into a small summary.

A safetensors file is an 8-byte little-endian length, a JSON header of that length, and the data
that the header's offsets index without gap or overlap (safetensors 0.6 README, "Format").
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bringup.checkpoint.errors import UnusableError

LONGEST_HEADER = 100_000_000
"""Bytes; the safetensors library refuses longer headers (safetensors 0.6, tensor.rs)."""

LONGEST_NAME = 1024
"""Characters of a tensor's name; the longest names in published checkpoints have about 120."""

MOST_GROUPS = 50_000
"""Different tensors after folding the experts; published checkpoints have a few thousand."""

DTYPE_BITS: dict[str, int] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of an element (safetensors 0.6, enum Dtype). The size of other dtypes isn't checked."""

ReadRange = Callable[[int, int], bytes]
"""``read(first, count)``: that many bytes of a file from byte ``first``; fewer at its end."""

EXPERTS = ".experts."


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors of one dtype and shape whose names differ in the expert's number only."""

    name: str
    """The tensor's name, with ``{}`` for the expert's number."""
    expert: int | None
    """The lowest number of these experts; None for a tensor without one."""
    dtype: str
    shape: tuple[int, ...]
    count: int
    bytes: int

    @property
    def example(self) -> str:
        """The name of one of the tensors."""
        return self.name if self.expert is None else self.name.replace("{}", str(self.expert), 1)


@dataclass(slots=True)
class Summary:
    """What the headers of a checkpoint's files say, folded."""

    tensors: int = 0
    groups: dict[tuple[str, str, tuple[int, ...]], list[int]] = field(default_factory=dict)
    """(folded name, dtype, shape) → [count, bytes, lowest expert or -1]"""

    def add(self, file: str, header: dict[str, Tensor]) -> None:
        """Fold the tensors of one file in.

        Raises:
            UnusableError: they'd make the summary larger than any real checkpoint does.
        """
        self.tensors += len(header)
        groups = self.groups
        for name, (dtype, shape, begin, end) in header.items():
            folded, expert = fold(name)
            group = groups.setdefault((folded, dtype, shape), [0, 0, expert])
            group[0] += 1
            group[1] += end - begin
            group[2] = min(group[2], expert)
        if len(groups) > MOST_GROUPS:
            raise UnusableError(f"{file}: names more than {MOST_GROUPS:,} different tensors")

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON holds it, in the order of the names."""
        rows = [[*key, *group] for key, group in self.groups.items()]
        return {"tensors": self.tensors, "groups": sorted(rows)}


Tensor = tuple[str, tuple[int, ...], int, int]
"""dtype, shape, begin and end of the data"""


def groups_of(document: dict[str, Any]) -> Iterator[TensorGroup]:
    """Yield the groups of a summary's document."""
    for name, dtype, shape, count, size, expert in document["groups"]:
        yield TensorGroup(name, expert if expert >= 0 else None, dtype, tuple(shape), count, size)


def fold(name: str) -> tuple[str, int]:
    """Return ``name`` with ``{}`` for the number of its expert, and that number, or -1."""
    start = name.find(EXPERTS)
    if start < 0:
        return name, -1
    start += len(EXPERTS)
    end = name.find(".", start)
    number = name[start : end if end >= 0 else None]
    if not (number.isascii() and number.isdigit()):
        return name, -1
    return f"{name[:start]}{{}}{name[start + len(number) :]}", int(number)


def read_header(read: ReadRange, size: int, file: str) -> dict[str, Tensor]:
    """Read and check the header of a file of ``size`` bytes; return its tensors by name.

    Raises:
        UnusableError: the header or the file's size is wrong; the message names the file.
    """
    start = read(0, 8)
    if len(start) < 8:
        raise UnusableError(f"{file}: {size} bytes, too short for a safetensors file")
    length = int.from_bytes(start, "little")
    if length > size - 8:
        raise UnusableError(
            f"{file}: the header should be {length:,} bytes long, but the file has {size:,}: "
            "it is cut short or no safetensors file"
        )
    if length > LONGEST_HEADER:
        raise UnusableError(
            f"{file}: a header of {length:,} bytes; safetensors allows {LONGEST_HEADER:,}"
        )
    text = read(8, length)
    if len(text) < length:
        raise UnusableError(f"{file}: the header ends after {len(text):,} of {length:,} bytes")
    tensors = _parsed(text, file)
    _check_extent(tensors, size - 8 - length, file)
    return tensors


def _parsed(text: bytes, file: str) -> dict[str, Tensor]:
    try:
        header = json.loads(text, object_pairs_hook=_tensor_or_dict)
    except (ValueError, RecursionError) as error:
        raise UnusableError(f"{file}: the header is not as it should be: {error}") from None
    if not isinstance(header, dict):
        raise UnusableError(f"{file}: the header is no JSON object")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if not isinstance(entry, tuple):
            raise UnusableError(f"{file}: {name[:80]!r} has no dtype, shape and data_offsets")
        if len(name) > LONGEST_NAME:
            raise UnusableError(f"{file}: a tensor's name has {len(name):,} characters")
    return header


def _tensor_or_dict(items: list[tuple[str, Any]]) -> Any:
    """Make a tensor's object a tuple at once, so that no large tree of dicts arises."""
    found = dict(items)
    if len(found) != len(items):
        raise ValueError("a name stands twice")
    if len(found) == 3 and "dtype" in found and "shape" in found and "data_offsets" in found:
        return _tensor(found["dtype"], found["shape"], found["data_offsets"])
    return found


def _tensor(dtype: Any, shape: Any, offsets: Any) -> Tensor:
    if type(dtype) is not str or not _are_sizes(shape):
        raise ValueError(f"dtype {str(dtype)[:40]!r}, shape {str(shape)[:80]}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"data_offsets {str(offsets)[:80]}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_sizes(value: Any) -> bool:
    if type(value) is not list:
        return False
    for each in value:  # noqa: SIM110 (lists so short are faster in a loop than in all())
        if type(each) is not int or each < 0:
            return False
    return True


def _check_extent(tensors: dict[str, Tensor], room: int, file: str) -> None:
    """Check that the tensors fill the ``room`` bytes after the header, without gap or overlap."""
    reached = 0
    for name, (dtype, shape, begin, end) in sorted(tensors.items(), key=lambda each: each[1][2:]):
        if begin != reached or end < begin:
            kind = "overlap" if begin < reached else "leave a gap" if end >= begin else "run back"
            raise UnusableError(f"{file}: data offsets {kind} at {name[:80]!r} ({begin}–{end})")
        bits = DTYPE_BITS.get(dtype)
        if bits is not None and -(-math.prod(shape) * bits // 8) != end - begin:
            raise UnusableError(
                f"{file}: {name[:80]!r} is {dtype} {list(shape)} but has {end - begin:,} bytes"
            )
        reached = end
    if reached != room:
        raise UnusableError(
            f"{file}: the tensors need {reached:,} bytes, the file holds {room:,}: "
            + ("it is cut short" if reached > room else "something follows them")
        )
