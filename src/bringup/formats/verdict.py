"""Compare what the files declare with what the tensors show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bringup.formats.declared import Claim, Declared, GroupSize
from bringup.formats.modules import Module
from bringup.formats.observed import Observed, Weight
from bringup.formats.tables import is_quantized, serves

WHOLLY_LINEAR = frozenset({"experts", "dense_mlp", "shared_experts"})
"""Classes of linear layers only: one left unquantized against the config breaks the load."""

PARTLY_LINEAR = frozenset({"attention", "draft"})
"""Classes with matrices that runtimes never quantize (indexers, compressors, mixing weights)."""

MIXED_BAG = frozenset({"other", "embeddings"})
"""Classes of which configs that name no module of them say nothing."""

SHOWN = 3
"""Entries of a list that a sentence repeats."""

Weighted = tuple[Module, int]
"""A module and its parameters, or 1 where only the config is known."""


def declared_classes(declared: Declared, modules: Iterable[Weighted]) -> dict[str, Any] | None:
    """Return what is declared for each module class, or None where nothing is."""
    votes: dict[str, Counter[Claim]] = {}
    for module, weight in modules:
        votes.setdefault(module.class_, Counter())[declared.claim(module)] += weight
    return {class_: _declared_class(votes[class_]) for class_ in sorted(votes)} or None


def _declared_class(votes: Counter[Claim]) -> dict[str, Any]:
    claim = votes.most_common(1)[0][0]
    return {
        "format": claim.format,
        "group_size": _size(claim.group_size),
        "said_by": claim.said_by,
        "unsure": claim.unsure,
        "formats": _by_format((each.format, votes[each]) for each in votes),
    }


def observed_classes(observed: Observed) -> dict[str, Any]:
    """Return what the tensors of each module class show."""
    return {
        class_: _observed_class(observed, class_)
        for class_ in sorted(observed.parts)
        if any(weight.module.class_ == class_ for weight in observed.weights)
    }


def _observed_class(observed: Observed, class_: str) -> dict[str, Any]:
    weights = [weight for weight in observed.weights if weight.module.class_ == class_]
    # Vectors count only where there is nothing else: they are in no quantized format.
    deciding = [weight for weight in weights if weight.matrix] or weights
    votes: Counter[tuple[Any, ...]] = Counter()
    for weight in deciding:
        votes[weight.format, weight.group_size, weight.scale_dtype] += weight.parameters
    (format_, group_size, scale_dtype), _ = votes.most_common(1)[0]
    return {
        "format": format_,
        "group_size": _size(group_size),
        "scale_dtype": scale_dtype,
        "tensors": observed.parts[class_].tensors,
        "weights": sum(weight.count for weight in weights),
        "parameters": sum(weight.parameters for weight in weights),
        "bytes": observed.parts[class_].bytes,
        "formats": _by_format((key[0], votes[key]) for key in votes),
    }


def classes(declared: dict[str, Any] | None, observed: dict[str, Any] | None) -> dict[str, Any]:
    """Return the format of each class: what is observed, else what is declared.

    Where the tensors hold more than the config asks for (scales for activations), the config's
    format is the one that a runtime uses.
    """
    found = {}
    for class_, shown in (observed if observed is not None else declared or {}).items():
        said = (declared or {}).get(class_, shown)
        used = said if serves(shown["format"], said["format"]) else shown
        found[class_] = {"format": used["format"], "group_size": shown["group_size"]}
    return found


def contradictions(declared: Declared, observed: Observed | None) -> list[str]:
    """Return in words every contradiction that the config can't have meant."""
    found = [line for each in declared.statements for line in each.contradictions]
    if observed is None:
        return found
    matrices = [weight for weight in observed.weights if weight.matrix]
    against: dict[tuple[Any, ...], list[Weight]] = {}
    for weight in matrices:
        claim = declared.claim(weight.module)
        if not claim.unsure and not _agree(claim, weight):
            shown = (weight.format, weight.group_size, weight.dtype, weight.scale_dtype)
            against.setdefault((weight.module.class_, claim, *shown), []).append(weight)
    for (class_, claim, *_), weights in sorted(against.items(), key=lambda each: str(each[0])):
        if _matters(class_, claim, weights, matrices):
            found.append(
                _sentence(class_, claim, weights) + _unused(declared, weights[0], matrices)
            )
    return found


def doubts(declared: Declared, modules: Iterable[Module], observed: Observed | None) -> list[str]:
    """Return in words what the metadata leaves open and the tensors don't bear out."""
    if observed is None:
        claims = [declared.claim(module) for module in modules]
        return sorted({claim.unsure for claim in claims if claim.unsure})
    found = set()
    for weight in observed.weights:
        claim = declared.claim(weight.module)
        if weight.matrix and claim.unsure and not _agree(claim, weight):
            found.add(claim.unsure)
    return sorted(found)


def _agree(claim: Claim, weight: Weight) -> bool:
    if not is_quantized(claim.format) and not is_quantized(weight.format):
        return True
    if not serves(weight.format, claim.format):
        return False
    sizes = (claim.group_size, weight.group_size)
    return sizes[0] == sizes[1] or not all(isinstance(size, int) for size in sizes)


def _matters(class_: str, claim: Claim, weights: Sequence[Weight], every: Sequence[Weight]) -> bool:
    """Whether a disagreement is one with the config, and no matrix that is never quantized."""
    shown = is_quantized(weights[0].format)
    if class_ in MIXED_BAG:
        return shown and is_quantized(claim.format)
    if shown or class_ in WHOLLY_LINEAR:
        return True
    if class_ not in PARTLY_LINEAR:
        return False
    whole = sum(weight.parameters for weight in every if weight.module.class_ == class_)
    return 2 * sum(weight.parameters for weight in weights) > whole


def _sentence(class_: str, claim: Claim, weights: Sequence[Weight]) -> str:
    shown = weights[0]
    count = sum(weight.count for weight in weights)
    scales = f" with {shown.scale_dtype} scales" if shown.scale_dtype else ""
    groups = _groups(shown.group_size)
    claimed = f"{claim.format}{_groups(claim.group_size) if shown.format == claim.format else ''}"
    return (
        f"{claim.said_by} says {claimed} for {class_}; {count:,} of their tensors are "
        f"{shown.dtype}{scales}{groups}: {shown.format}"
    )


def _groups(size: GroupSize) -> str:
    if size is None:
        return ""
    return (
        f" in groups of {size}" if isinstance(size, int) else f" in blocks of {size[0]}×{size[1]}"
    )


def _unused(declared: Declared, weight: Weight, every: Sequence[Weight]) -> str:
    """Name entries of an exclusion list that no module has, where the list may be meant to help."""
    if is_quantized(weight.format) or not declared.statements:
        return ""
    first = declared.statements[0]
    unused = first.excluded.unused({weight.module.name for weight in every})
    if not unused:
        return ""
    more = f" and {len(unused) - SHOWN} more" if len(unused) > SHOWN else ""
    listed = ", ".join(unused[:SHOWN])
    return f" ({first.by}.{first.excluded_by} names modules that aren't there: {listed}{more})"


def _size(size: GroupSize) -> int | list[int] | None:
    """Return a group size as JSON has it."""
    return list(size) if isinstance(size, tuple) else size


def _by_format(votes: Iterator[tuple[str, int]]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for format_, weight in votes:
        counted[format_] += weight
    return dict(sorted(counted.items()))
