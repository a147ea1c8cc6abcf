"""Known traps: combinations that end badly, or differently from what one would think."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from bringup import routing
from bringup.routing import tables, versions


@dataclass(frozen=True)
class Situation:
    """What traps are held against."""

    gpu: str
    """``sm90`` … or ``cpu``."""
    version: str | None
    model: str | None = None
    """The model's architecture, as ``config.json`` spells it."""
    experts: str | None = None
    """The format of the experts' weights."""
    method: str | None = None
    """What the checkpoint's files call its quantization."""
    nvlink: bool | None = None
    """Whether every pair of GPUs is joined by NVLink; None if unknown or there is one GPU."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Server arguments by their canonical names."""
    env: Mapping[str, str] = field(default_factory=dict)


def caught(situation: Situation) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``traps.yaml`` that a situation falls into."""
    return (row for row in _file()["traps"] if _holds(row["when"], situation))


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of ``variables`` that change results, speed or memory."""
    known = _file()["environment"]
    prefixes = tuple(known["prefixes"])
    return {
        name: value
        for name, value in sorted(variables.items())
        if name in known["names"] or (name.startswith(prefixes) and name not in known["places"])
    }


def _holds(when: Mapping[str, Any], situation: Situation) -> bool:
    return (
        ("gpus" not in when or routing.is_in(situation.gpu, when["gpus"]))
        and situation.model in when.get("models", [situation.model])
        and situation.experts in when.get("experts", [situation.experts])
        and situation.method in when.get("methods", [situation.method])
        and situation.nvlink == when.get("nvlink", situation.nvlink)
        and versions.within(versions.parse(situation.version), when.get("sglang"))
        and all(_fits(situation.flags.get(k), test) for k, test in when.get("flags", {}).items())
        and all(_fits(situation.env.get(k), test) for k, test in when.get("env", {}).items())
    )


def _fits(value: Any, test: Any) -> bool:
    """Say whether a value passes a test of ``traps.yaml`` (its head explains them)."""
    is_set = value is not None and value is not False
    if isinstance(test, list):
        return value in test
    if test == "set":
        return is_set
    if test == "unset":
        return not is_set
    if above := re.fullmatch(r">(\d+)", test):
        return isinstance(value, int) and value > int(above[1])
    if test.startswith("has "):
        return is_set and test.removeprefix("has ") in str(value)
    raise ValueError(f"traps.yaml: {test!r} is no test")


@cache
def _file() -> dict[str, Any]:
    return tables.read(__file__, "traps.yaml")
