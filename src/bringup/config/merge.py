"""How sections of the config combine: deep, lists replace, ``null`` deletes."""

from __future__ import annotations

from itertools import product
from typing import Any

Mapping = dict[str, Any]


def merged(under: Any, over: Any) -> Any:
    """Lay ``over`` on ``under``: mappings key by key, everything else replaces."""
    if not isinstance(over, dict):
        return over
    base = under if isinstance(under, dict) else {}
    result = {key: value for key, value in base.items() if key not in over or over[key] is not None}
    for key, value in over.items():
        if value is not None:
            result[key] = merged(base.get(key), value)
    return result


def without_nulls(value: Any) -> Any:
    """Return ``value`` without the keys that only delete a default."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def canonical(value: Any) -> Any:
    """Sort mappings recursively: Snakemake compares params by their text."""
    if isinstance(value, dict):
        return {key: canonical(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [canonical(item) for item in value]
    return value


def combinations(matrix: Mapping) -> list[Mapping]:
    """Return every choice of one value per key, the last key varying fastest."""
    return [dict(zip(matrix, values, strict=True)) for values in product(*matrix.values())]


def matches(combination: Mapping, pattern: Mapping) -> bool:
    """Tell whether ``combination`` has all the values of ``pattern``."""
    return all(combination.get(key) == value for key, value in pattern.items())
