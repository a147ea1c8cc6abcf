"""What the tensor headers show about the format of each module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from bringup.checkpoint import TensorGroup
from bringup.formats.declared import GroupSize
from bringup.formats.modules import EXPERTS, Module, classify
from bringup.formats.tables import table

BLOCKS = (128, 64, 32, 256, 16)
"""Sides of blocks that are tried on a scale's shape, the usual first; a last block may be cut."""


@dataclass(frozen=True, slots=True)
class Weight:
    """The weight of a module, or the weights of the experts that look alike."""

    module: Module
    format: str
    matrix: bool
    """False for vectors (norms' weights), which no quantization touches."""
    group_size: GroupSize
    dtype: str
    scale_dtype: str | None
    count: int
    """Tensors that hold the weights themselves."""
    parameters: int


@dataclass(frozen=True, slots=True)
class Part:
    """All tensors of a module class."""

    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Observed:
    """What the headers of a checkpoint show."""

    weights: list[Weight]
    parts: Mapping[str, Part]
    """By module class."""


def observe(groups: Iterable[TensorGroup], layers: int | None) -> Observed:
    """Tell the format of every module from its tensors' names, dtypes and shapes.

    Args:
        groups: the tensors of all files.
        layers: the model's layers by its config; later ones are draft layers.
    """
    tensors: dict[str, dict[str, list[TensorGroup]]] = {}
    parts: dict[str, Part] = {}
    modules: dict[str, Module] = {}
    for group in groups:
        name, leaf = split(group.example)
        if name not in modules:
            modules[name] = Module(name, classify(name, layers))
        tensors.setdefault(name, {}).setdefault(leaf, []).append(group)
        class_ = modules[name].class_
        known = parts.get(class_, Part(0, 0))
        parts[class_] = Part(known.tensors + group.count, known.bytes + group.bytes)
    weights = [
        weight for name, module in modules.items() for weight in _weights(module, tensors[name])
    ]
    return Observed(weights, parts)


def split(name: str) -> tuple[str, str]:
    """Return the module and the part of it that a tensor is: ``("model.norm", "weight")``."""
    for leaf in _leaves():
        if name.endswith(f".{leaf}"):
            return name[: -len(leaf) - 1], leaf
    if EXPERTS.search(name):
        for leaf in _leaves():
            if name.endswith(f"_{leaf}"):
                return name[: -len(leaf) - 1], leaf
    return name, ""


def _weights(module: Module, tensors: Mapping[str, list[TensorGroup]]) -> Iterator[Weight]:
    for leaf in table("signatures")["weights"]:
        for group in tensors.get(leaf, ()):
            weight = _weight(module, leaf, group, tensors)
            if weight is not None:
                yield weight


def _weight(
    module: Module, leaf: str, group: TensorGroup, tensors: Mapping[str, list[TensorGroup]]
) -> Weight | None:
    """Return what the first fitting signature says; None for tables and buffers (integers)."""
    for row in table("signatures")["rows"]:
        if leaf not in row["weight"]["leaf"] or not _has_dtype(group, row["weight"]["dtypes"]):
            continue
        if any(part not in tensors for part in row.get("needs", ())):
            continue
        if any(part in tensors for part in row.get("lacks", ())):
            continue
        shape = _unpacked(group.shape, row)
        if "scale" not in row:
            return _found(module, row, group, shape, None, None)
        for scale in _scales(row["scale"], tensors):
            layout, size = relation(shape, scale.shape)
            if layout in row["scale"]["layouts"]:
                return _found(module, row, group, shape, size, scale.dtype)
    return None


def _found(
    module: Module,
    row: Mapping[str, Any],
    group: TensorGroup,
    shape: tuple[int, ...],
    size: GroupSize,
    scale_dtype: str | None,
) -> Weight:
    return Weight(
        module,
        row["format"],
        len(group.shape) > 1,
        size,
        group.dtype,
        scale_dtype,
        group.count,
        group.count * math.prod(shape),
    )


def relation(weight: tuple[int, ...], scale: tuple[int, ...]) -> tuple[str | None, GroupSize]:
    """Tell how a scale's shape relates to that of its weight, counted in values.

    Leading dimensions (fused experts) must be alike. Returns the layout — tensor, channel, group,
    blocked (as group, with the groups in a dimension of their own) or block; None where the shapes
    don't fit — and the group's size.
    """
    if math.prod(scale) == 1 and len(scale) < 2:
        return "tensor", None
    if len(weight) < 2:
        return None, None
    if len(weight) == len(scale) + 1 and weight[:-1] == scale:
        return ("blocked", weight[-1]) if len(weight) > 3 else ("channel", None)
    if len(weight) > 2 and scale[1:] in ((), (1,)) and scale[:1] == weight[:1]:
        return "tensor", None
    if len(weight) != len(scale) or weight[:-2] != scale[:-2]:
        return None, None
    return _grid((weight[-2], weight[-1]), (scale[-2], scale[-1]))


def _grid(weight: tuple[int, int], scale: tuple[int, int]) -> tuple[str | None, GroupSize]:
    """Tell the layout of a matrix of scales over a matrix of weights."""
    for axis in (0, 1):
        along = 1 - axis
        if scale[axis] == weight[axis] and scale[along] > 0:
            if scale[along] == 1:
                return "channel", None
            if weight[along] % scale[along] == 0:
                return "group", weight[along] // scale[along]
    if 0 in scale:
        return None, None
    return "block", (_side(weight[0], scale[0]), _side(weight[1], scale[1]))


def _side(whole: int, number: int) -> int:
    """Return the side of the blocks of which ``number`` cover ``whole`` values."""
    fitting = (side for side in BLOCKS if -(-whole // side) == number)
    return next(fitting, -(-whole // number))


def _unpacked(shape: tuple[int, ...], row: Mapping[str, Any]) -> tuple[int, ...]:
    packed, axis = row.get("packed", 1), row.get("axis", -1)
    if packed == 1 or not shape:
        return shape
    counted = list(shape)
    counted[axis] *= packed
    return tuple(counted)


def _scales(
    wanted: Mapping[str, Any], tensors: Mapping[str, list[TensorGroup]]
) -> Iterator[TensorGroup]:
    for leaf in wanted["leaf"]:
        for group in tensors.get(leaf, ()):
            if _has_dtype(group, wanted["dtypes"]):
                yield group


def _has_dtype(group: TensorGroup, dtypes: Iterable[str]) -> bool:
    return group.dtype in dtypes or "*" in dtypes


@cache
def _leaves() -> list[str]:
    """Return the parts of modules, the longest first."""
    return sorted(table("signatures")["leaves"], key=len, reverse=True)
