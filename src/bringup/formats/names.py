"""Lists of module names in quantization configs: plain names, shell patterns, ``re:`` patterns."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from fnmatch import translate
from functools import cache

from bringup.checkpoint import UnusableError
from bringup.formats.tables import table


class Names:
    """Finds a module in a list; an entry that names a parent covers the modules below it.

    A module is also found under the name that a runtime gives it together with its siblings
    (``gate_up_proj``).
    """

    def __init__(self, entries: Iterable[str], where: str = "") -> None:
        """Take the ``entries`` of the list at ``where``, which error messages name.

        Raises:
            UnusableError: an entry is no valid pattern.
        """
        self.entries = [entry for entry in entries if isinstance(entry, str)]
        self._plain = {entry for entry in self.entries if not _is_pattern(entry)}
        self._shell = _alternatives(
            translate(entry) for entry in self.entries if _is_pattern(entry) and entry[:3] != "re:"
        )
        self._regular = list(_regular(self.entries, where))

    def find(self, name: str) -> str | None:
        """Return the name under which the module ``name`` is in the list, or None."""
        for spelt in _spellings(name):
            for parent in _parents(spelt):
                if parent in self._plain or (self._shell and self._shell.match(parent)):
                    return parent
            # As compressed-tensors does it: `re.match` on the whole name.
            if any(pattern.match(spelt) for pattern in self._regular):
                return spelt
        return None

    def __contains__(self, name: str) -> bool:
        """Whether the module ``name`` is in the list."""
        return self.find(name) is not None

    def unused(self, names: Iterable[str]) -> list[str]:
        """Return the entries that none of the modules ``names`` is found by."""
        spelt = {spelling for name in names for spelling in _spellings(name)}
        covered = {parent for spelling in spelt for parent in _parents(spelling)}
        return [entry for entry in self.entries if not _covers(entry, spelt, covered)]


def _covers(entry: str, names: Iterable[str], parents: Container[str]) -> bool:
    """Whether an entry finds one of ``names``, whose ``parents`` are known."""
    if not _is_pattern(entry):
        return entry in parents
    alone = Names([entry])
    return any(name in alone for name in names)


def _is_pattern(entry: str) -> bool:
    return entry.startswith("re:") or any(sign in entry for sign in "*?[")


def _regular(entries: Iterable[str], where: str) -> Iterator[re.Pattern[str]]:
    for entry in entries:
        if entry.startswith("re:"):
            try:
                yield re.compile(entry[3:])
            except re.error as error:
                raise UnusableError(f"{where}: {entry!r} is no pattern: {error}") from None


def _alternatives(patterns: Iterable[str]) -> re.Pattern[str] | None:
    every = [f"(?:{pattern})" for pattern in patterns]
    return re.compile("|".join(every)) if every else None


def _parents(name: str) -> Iterator[str]:
    """Yield ``name``, and the names of the modules that it lies in, the innermost first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _spellings(name: str) -> Iterator[str]:
    """Yield ``name``, then the fused names that it is part of."""
    yield name
    before, dot, last = name.rpartition(".")
    for fused in _fused_of().get(last, ()):
        yield f"{before}{dot}{fused}"


@cache
def _fused_of() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for fused, parts in table("modules")["fused"].items():
        for part in parts:
            found.setdefault(part, []).append(fused)
    return found
