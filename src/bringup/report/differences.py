"""What exactly differs between two experiments: one variable at a time, or a warning.

An experiment is described by its facets: checkpoint, engine build, patches, every server flag,
every environment variable, devices and their power limit, driver, machine, workload.  Two
experiments differ in the facets whose values differ; the nearest experiment is the one with the
fewest.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from bringup.artifact import Document
from bringup.report.cases import Case

Facets = dict[str, str]

ABSENT = "not set"

EVERY_RUN = frozenset({"model-path", "served-model-name", "host", "port", "tokenizer-path"})
"""Flags that name the checkpoint or the socket: not a variable of their own."""

WORKLOAD = ("input_tokens", "output_tokens")
"""What is sent; how long and how often it is sent says how much is measured, not what."""


def facets(case: Case) -> Facets:
    """Return the facets of an experiment, each with its value in words."""
    entry, plan = case.entry, case.of("plan")
    found: Facets = {
        "checkpoint": _text(entry.get("checkpoint")),
        "engine": engine_base(case),
        "patches": " + ".join(patches(case.of("engine"))) or "none",
        "devices": _text(plan.get("gpus")) if plan.get("device") == "cuda" else "cpu",
        "workload": workload(case),
    }
    found |= _flags(case) | _machine(case)
    environment = plan.get("env") or entry.get("env") or {}
    found |= {f"{name}=": _text(value) for name, value in environment.items()}
    return found | ({"draft": _text(entry["draft"])} if entry.get("draft") else {})


def _machine(case: Case) -> Facets:
    """Return what is known of the machine that it ran on, and may differ between two runs."""
    server = case.of("server")
    found = {"machine": "another one" if case.foreign else "this one"}
    if driver := (server.get("versions") or {}).get("driver"):
        found["driver"] = _text(driver)
    limits = {gpu.get("power_limit_w") for gpu in (server.get("live") or {}).get("gpus") or []}
    if known := sorted(each for each in limits if each is not None):
        found["power limit"] = f"{' and '.join(f'{each:g}' for each in known)} W"
    return found


def _flags(case: Case) -> dict[str, str]:
    flags = case.of("plan").get("flags")
    if flags is None:
        flags = [{"flag": flag, "value": value} for flag, value in _server(case).items()]
    return {
        str(each.get("flag")).lstrip("-"): _text(each.get("value"))
        for each in flags
        if str(each.get("flag")).lstrip("-") not in EVERY_RUN
    }


def _server(case: Case) -> dict[str, Any]:
    return {
        flag: value
        for flag, value in (case.entry.get("server") or {}).items()
        if flag != "startup_max_s"
    }


def engine_base(case: Case) -> str:
    """Return the build that an engine starts from, in words: a release, a commit, a path."""
    engine = case.of("engine")
    base = engine.get("base") or {}
    version = engine.get("version") or base.get("version")
    if "git" in base:
        return f"{_text(base['git'])} ({version})" if version else _text(base["git"])
    return _text(version) if version else _text(case.entry.get("engine"))


def patches(engine: Document) -> list[str]:
    """Return the patches of an engine, in the order in which they were applied."""
    return [patch_name(each.get("source", each)) for each in engine.get("patches") or []]


def patch_name(source: Any) -> str:
    """Return a patch as people name it, from its source in the config."""
    if not isinstance(source, dict):
        return _text(source)
    if "pr" in source:
        repo, head = source.get("repo"), str(source.get("head") or "")[:12]
        return f"{f'{repo} ' if repo else ''}PR #{source['pr']}{f' at {head}' if head else ''}"
    return _text(next(iter(source.values()), source))


def workload(case: Case) -> str:
    """Return the workload of an experiment in words: its lengths, in tokens."""
    sweep = case.entry.get("sweep") or {}
    return ", ".join(
        f"{sweep[key]} {key.replace('_', ' ')}" for key in WORKLOAD if sweep.get(key) is not None
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def between(ours: Facets, theirs: Facets) -> list[Document]:
    """Return ``[{what, ours, theirs}]``: every facet whose value differs."""
    return [
        {"what": name, "ours": ours.get(name, ABSENT), "theirs": theirs.get(name, ABSENT)}
        for name in (*ours, *(name for name in theirs if name not in ours))
        if ours.get(name) != theirs.get(name)
    ]


class Candidates:
    """Experiments that another one can be compared with.

    Each is a row of numbers, one for each facet that any of them has, so that among thousands the
    nearest is found at once.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._columns: dict[str, int] = {}
        self._values: dict[tuple[str, str], int] = {}
        self._rows = np.zeros((0, 0), dtype=np.int32)  # 0: not set

    def add(self, name: str, facets: Facets) -> None:
        """Add an experiment."""
        row = self._row(facets)
        height, width = self._rows.shape
        if len(self._names) == height or len(row) > width:
            grown = np.zeros((max(16, 2 * len(self._names)), len(row)), dtype=np.int32)
            grown[:height, :width] = self._rows
            self._rows = grown
        self._rows[len(self._names)] = row
        self._names.append(name)

    def nearest(self, facets: Facets) -> str | None:
        """Return the name of the one that differs in the fewest facets; the first of equals."""
        if not self._names:
            return None
        row = self._row(facets)
        width = self._rows.shape[1]
        candidates = self._rows[: len(self._names)]
        return self._names[int((candidates != row[:width]).sum(axis=1).argmin())]

    def _row(self, facets: Facets) -> npt.NDArray[np.int32]:
        for name in facets:
            self._columns.setdefault(name, len(self._columns))
        row = np.zeros(len(self._columns), dtype=np.int32)
        for facet in facets.items():
            row[self._columns[facet[0]]] = self._values.setdefault(facet, len(self._values) + 1)
        return row
