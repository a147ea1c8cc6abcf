"""Keep secrets out of everything that is written: artefacts, logs, command lines.

A secret is known by its name (a flag or variable that holds keys), by its shape (tokens of the
hubs and clouds that people really use), or by its value: what the variables of this process that
are named like secrets hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

HIDDEN = "[hidden]"

SECRET_NAME = re.compile(
    r"(?i)(^|[-_.])(api[-_]?key|admin[-_]?api[-_]?key|secret|passwd|password|credentials?|"
    r"(access|auth|hf|hub|bearer|session|github|gitlab|refresh)[-_]?token|token|private[-_]?key)$"
)
"""Names of flags, variables and keys whose value is never written."""

SECRET_SHAPE = re.compile(
    r"hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|"
    r"github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16}|"
    r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|(?i:(?<=bearer )[A-Za-z0-9._~+/-]{16,})"
)
"""Values that are secrets wherever they stand."""

SECRET_ARGUMENT = re.compile(r"(?i)(--?[\w-]*(?:api-key|token|password|secret)[ =])(\S+)")
"""A flag that holds a secret, with its value, inside a text."""

REFERENCE = re.compile(r"\{secret:([A-Za-z_][A-Za-z0-9_]*)\}")
"""How documents name a secret: the variable of the user's shell that holds it."""

SHORTEST_VALUE = 8
"""A shorter value of a secret variable is not searched for in texts: it would hit plain words."""

T = TypeVar("T")


def redacted(value: T, then: Callable[[str], str] = str) -> T:
    """Return ``value`` (text, argv, or a JSON document) with every secret replaced.

    ``then`` is what else is done to each text of it.
    """
    return cast(T, _redacted(value, "", then))


_NO_TEXT = frozenset({type(None), bool, int, float})
"""Types of most of a document's values, which are not looked into."""


def _redacted(value: Any, name: str, then: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        if REFERENCE.fullmatch(value):
            return value
        return HIDDEN if value and _is_secret(name) else then(redacted_text(value))
    if type(value) is dict or isinstance(value, Mapping):
        return {
            key: item if type(item) in _NO_TEXT else _redacted(item, str(key), then)
            for key, item in value.items()
        }
    return _redacted_items(value, then) if isinstance(value, list | tuple) else value


@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    return bool(SECRET_NAME.search(name))


def _redacted_items(items: Sequence[Any], then: Callable[[str], str]) -> list[Any]:
    """Redact a list, in which an argument that follows a secret flag is a secret."""
    clean: list[Any] = []
    flag = ""
    for item in items:
        clean.append(_redacted(item, flag, then))
        flag = item.lstrip("-") if isinstance(item, str) and item.startswith("--") else ""
    return clean


def revealed(text: str) -> str:
    """Return ``text`` with every reference to a secret replaced by the secret.

    Raises:
        OSError: the variable that holds it is not set.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise OSError(f"the config takes a secret from {name}, which is not set; export it")
        return os.environ[name]

    return REFERENCE.sub(value, text)


def redacted_text(text: str) -> str:
    """Return ``text`` without tokens, and without the values of this process's secret variables."""
    return _without(_secret_values(), text)


@lru_cache(maxsize=1 << 14)  # most texts of a large report stand in many of its experiments
def _without(secrets: Sequence[str], text: str) -> str:
    for value in secrets:
        text = text.replace(value, HIDDEN)
    return SECRET_SHAPE.sub(HIDDEN, SECRET_ARGUMENT.sub(rf"\1{HIDDEN}", text))


@cache
def _secret_values() -> tuple[str, ...]:
    return tuple(
        value
        for name, value in os.environ.items()
        if SECRET_NAME.search(name) and len(value) >= SHORTEST_VALUE
    )
