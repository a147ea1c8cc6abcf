"""Tell whether a regular expression can be trusted with a text from a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)


def trouble(pattern: str) -> str | None:
    """Return what is wrong with ``pattern``, or None.

    A repeat without end inside another one, such as ``(a+)+``, or around alternatives, such as
    ``(a|ab)*``, can take exponential time; both are refused although some of them are harmless.
    """
    try:
        parsed = parser.parse(pattern)
    except re.error as error:
        return f"does not compile: {error}"
    if any(_endless(inner) for outer in _endless_repeats(parsed) for inner in _parts(outer)):
        return "may backtrack without end: a repeat or alternatives inside a repeat without end"
    return None


def _endless_repeats(parsed: Any) -> Iterator[Any]:
    """Yield what is repeated by each repeat without end, wherever it stands."""
    for code, value in _parts(parsed):
        if code in REPEATS and value[1] == codes.MAXREPEAT:
            yield value[2]


def _endless(part: tuple[Any, Any]) -> bool:
    code, value = part
    return code is codes.BRANCH or (code in REPEATS and value[1] == codes.MAXREPEAT)


def _parts(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (code, value) of a parsed pattern, those nested in others too."""
    for code, value in parsed:
        yield code, value
        for inner in value if isinstance(value, tuple | list) else (value,):
            if isinstance(inner, parser.SubPattern):
                yield from _parts(inner)
            elif isinstance(inner, list):
                for branch in inner:
                    if isinstance(branch, parser.SubPattern):
                        yield from _parts(branch)
