"""Which backend runs a format on a GPU in an SGLang version: the knowledge, as tables.

``table.yaml`` says it, with a source for every row; anyone can add a row.  This module only looks
rows up.  What a build makes of a checkpoint, and which flags follow, is ``bringup.plan``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Any

from bringup.routing import tables, versions

Row = dict[str, Any]

VERDICTS = (
    "recommended",
    "works",
    "unknown",
    "starts-but-slow",
    "starts-but-wrong",
    "refuses",
)
"""From the best to the worst."""

GOOD = frozenset({"recommended", "works"})
BAD = frozenset({"starts-but-wrong", "refuses"})
"""A run with such a backend costs time and gives nothing."""

AUTO = "auto"
MODULES = ("experts", "dense", "attention", "sparse-attention")
FULL_ATTENTION = "full-attention"
"""The group of the models that no group of the table names."""


def rank(
    format: str,
    module_class: str,
    model_architecture: str | None,
    gpu_architecture: str,
    sglang_version: str | None,
    *,
    patches: Collection[int] = (),
    flag: str | None = None,
) -> list[Row]:
    """Return what is known of each backend, the best first.

    Args:
        format: a format as docs/design.md §1 spells it; for attention that of the KV cache:
            ``bf16`` (any of 16 bits), ``fp8`` or ``nvfp4``.
        module_class: one of ``MODULES``; ``dense`` is every linear layer but the experts.
        model_architecture: as ``config.json`` spells it; None is a model that no row names.
        gpu_architecture: ``sm90`` … or ``cpu``.
        sglang_version: None or unreadable means that rows about a range of versions don't count.
        patches: pull requests that the build has beyond its version.
        flag: the server argument that names the backend, where a module has several.

    Returns:
        ``[{backend, verdict, reason, sources, row}]``; backends of equal verdict stand in the order
        of the table, but what the build would take by itself comes before others of its verdict.
    """
    situation = _Situation(
        format, module_class, model_architecture, gpu_architecture, sglang_version, patches, flag
    )
    rows = list(situation.matching(_table()["rows"]))
    everything = [row for row in rows if "*" in row["backends"]]
    named = [name for row in rows for name in row["backends"] if name != "*"]
    names = list(dict.fromkeys([*named, *(_known_backends(situation) if everything else [])]))
    answers = [_answer(name, rows) for name in names]
    own = situation.first(_table()["automatic"])
    return sorted(
        answers,
        key=lambda answer: (
            VERDICTS.index(answer["verdict"]),
            own is None or answer["backend"] != own["backend"],
        ),
    )


def automatic(
    format: str,
    module_class: str,
    model_architecture: str | None,
    gpu_architecture: str,
    sglang_version: str | None,
    *,
    patches: Collection[int] = (),
    flag: str | None = None,
) -> Row | None:
    """Return what the build takes where nothing is asked: ``{backend, reason, sources}``, or None.

    Arguments as for :func:`rank`.
    """
    situation = _Situation(
        format, module_class, model_architecture, gpu_architecture, sglang_version, patches, flag
    )
    row = situation.first(_table()["automatic"])
    if row is None:
        return None
    return {"backend": row["backend"], "reason": row["reason"], "sources": row["source"]}


def backends(architecture: str) -> list[str]:
    """Return the expert backends that ``backend: all`` stands for on an architecture."""
    rows = (
        row
        for row in _table()["rows"]
        if is_in(architecture, row["gpus"]) and row["module"] in ("experts", "any")
    )
    named = (name for row in rows for name in row["backends"])
    return [name for name in dict.fromkeys(named) if name not in ("*", AUTO)]


def flags(module_class: str, format: str) -> list[Row]:
    """Return the server arguments that choose a module class's backend: ``[{flag, also}]``.

    ``also`` are other arguments that choose it for a part of the work.
    """
    return [
        {"flag": row["flag"], "also": row.get("also", [])}
        for row in _table()["flags"]
        if row["module"] == module_class and format in row.get("formats", [format])
    ]


def kinds(model_architecture: str | None) -> set[str]:
    """Return the groups of models that an architecture is in, ``full-attention`` if in none."""
    groups = _table()["models"]
    found = {name for name, members in groups.items() if model_architecture in members}
    return found or {FULL_ATTENTION}


def architectures() -> list[str]:
    """Return the architectures that the table knows, ``cpu`` last."""
    return [*_table()["groups"]["gpu"], "cpu"]


def is_in(architecture: str, names: Iterable[str]) -> bool:
    """Say whether an architecture is one of ``names``, which may be groups of the table."""
    groups = _table()["groups"]
    return any(architecture in groups.get(name, [name]) for name in names)


def formats(module_class: str) -> list[str]:
    """Return the formats that the table has rows for, of a module class."""
    rows = (row for row in _table()["rows"] if _speaks_of(row, module_class))
    return sorted({name for row in rows for name in row["formats"]})


def features(sglang_version: str | None, patches: Collection[int] = ()) -> set[str]:
    """Return the features of the table that a build has, by its version or by a patch."""
    version = versions.parse(sglang_version)
    return {
        name
        for name, feature in _table()["features"].items()
        if versions.within(version, f">={feature['since']}") or feature["pr"] in patches
    }


class _Situation:
    """What rows are held against."""

    def __init__(
        self,
        format: str,
        module: str,
        model: str | None,
        gpu: str,
        version: str | None,
        patches: Collection[int],
        flag: str | None = None,
    ) -> None:
        self.format = format
        self.module = module
        self.models = {model, *kinds(model)}
        self.gpu = gpu
        self.flag = flag
        self.version = versions.parse(version)
        self.features = features(version, patches)

    def matching(self, rows: Iterable[Row]) -> Iterator[Row]:
        return (row for row in rows if self._matches(row))

    def first(self, rows: Iterable[Row]) -> Row | None:
        return next(self.matching(rows), None)

    def _matches(self, row: Row) -> bool:
        return (
            _speaks_of(row, self.module)
            and self.format in row["formats"]
            and not self.models.isdisjoint(row.get("models", self.models))
            and (self.flag is None or self.flag in row.get("for", [self.flag]))
            and is_in(self.gpu, row["gpus"])
            and versions.within(self.version, row.get("sglang"))
            and row.get("has") in {None, *self.features}
            and row.get("lacks") not in self.features
        )


def _speaks_of(row: Row, module_class: str) -> bool:
    weights = module_class in ("experts", "dense")
    return row["module"] == module_class or (weights and row["module"] == "any")


def _known_backends(situation: _Situation) -> list[str]:
    """Return what a row about every backend speaks of: those of the table, and no choice at all."""
    return [AUTO, *backends(situation.gpu)] if situation.module == "experts" else [AUTO]


def _answer(name: str, rows: list[Row]) -> Row:
    """Return what the table says of one backend: the most special row, then the first."""
    speaking = (row for row in rows if name in row["backends"] or "*" in row["backends"])
    row = min(speaking, key=lambda row: ("models" not in row, name not in row["backends"]))
    return {
        "backend": name,
        "verdict": row["verdict"],
        "reason": row["reason"],
        "sources": row["source"],
        "row": row["id"],
    }


@cache
def _table() -> dict[str, Any]:
    return tables.read(__file__, "table.yaml")
