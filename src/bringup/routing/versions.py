"""SGLang versions and the ranges that the tables speak of.

Ranges are written as in requirements (``>=0.5.14,<0.5.21``), but compared by order alone: PEP 440
puts ``0.5.14.dev3``, a build between two releases, neither below nor above 0.5.14.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from packaging.version import InvalidVersion, Version

_COMPARISONS: dict[str, Callable[[Version, Version], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_PART = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*([0-9][^,\s]*)\s*")


def parse(text: str | None) -> Version | None:
    """Return the version that ``text`` names, without its local part, or None.

    ``0.0.0`` is what a build without its git history says of itself: no version.
    """
    try:
        version = Version(Version(text or "").public)
    except InvalidVersion:
        return None
    return version if any(version.release) else None


def within(version: Version | None, specifier: str | None) -> bool:
    """Say whether a version lies in a range; an unknown version lies in none but the open one.

    Raises:
        ValueError: the range can't be read.
    """
    if specifier is None:
        return True
    tests = [_comparison(part) for part in specifier.split(",")]
    return version is not None and all(compare(version, bound) for compare, bound in tests)


def _comparison(part: str) -> tuple[Callable[[Version, Version], bool], Version]:
    written = _PART.fullmatch(part)
    if written is None:
        raise ValueError(f'{part!r} is no version range; right: ">=0.5.14,<0.5.21"')
    return _COMPARISONS[written[1]], Version(written[2])
