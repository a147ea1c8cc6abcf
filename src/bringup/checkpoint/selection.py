"""Which files of a checkpoint are needed: weights once, configs, tokenizer, and code when asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

import yaml

SAFETENSORS = "safetensors"


@dataclass(frozen=True, slots=True)
class File:
    """A file of a checkpoint, by its path below the checkpoint's folder."""

    name: str
    size: int
    sha256: str | None = None
    """The hub's LFS id; None where nobody has hashed it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The needed files by their use, each list in the order of the names."""

    kind: str | None
    """What the weights are: safetensors, bin, gguf; None where there are none."""
    weights: list[File]
    configs: list[File]
    tokenizer: list[File]
    code: list[File]

    @property
    def all(self) -> list[File]:
        """Every needed file once, in the order of the names."""
        chosen = {*self.weights, *self.configs, *self.tokenizer, *self.code}
        return sorted(chosen, key=lambda file: file.name)


@cache
def _rules() -> Any:
    return yaml.safe_load((resources.files(__package__) / "files.yaml").read_text("utf-8"))


def select(files: Iterable[File], *, code: bool, indexed: Collection[str] = ()) -> Selection:
    """Choose the needed ones of ``files``.

    Args:
        files: all files of the checkpoint.
        code: whether the config allows remote code.
        indexed: weight files that the index names; needed wherever they are.
    """
    rules = _rules()
    listed = sorted(files, key=lambda file: file.name)
    kind, weights = None, [file for file in listed if file.name in indexed]
    for row in rules["weights"]:
        matching = _matching(listed, row["patterns"], but=rules["not_weights"])
        once = _matching(matching, ["*"], but=rules["duplicates"]) or matching
        if once or (row["kind"] == SAFETENSORS and weights):
            kind, weights = row["kind"], sorted({*weights, *once}, key=lambda file: file.name)
            break
    return Selection(
        kind,
        weights,
        _matching(listed, rules["configs"]),
        _matching(listed, rules["tokenizer"]),
        _matching(listed, rules["code"]) if code else [],
    )


def is_config(name: str) -> bool:
    """Whether ``name`` is a small file that is read before the plan."""
    return _matches(name, _rules()["configs"])


def _matching(files: Iterable[File], patterns: list[str], but: Iterable[str] = ()) -> list[File]:
    return [
        file for file in files if _matches(file.name, patterns) and not _matches(file.name, but)
    ]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(
        name.count("/") == pattern.count("/") and fnmatchcase(name, pattern) for pattern in patterns
    )
