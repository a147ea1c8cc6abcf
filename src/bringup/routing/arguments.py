"""Server arguments: one name each, held against the parser of the build at hand.

argparse binds an unknown long flag silently to the one that it abbreviates; here an unknown flag is
an objection that names the nearest one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from bringup.artifact import Document, reason
from bringup.routing import tables


def canonical(name: str) -> str:
    """Return the first of the names that one argument has (``tp`` is ``tp-size``)."""
    return next((aliases[0] for aliases in _file()["aliases"] if name in aliases), name)


def as_this_build_says(
    name: str, known: Collection[str], renamed: Mapping[str, str]
) -> tuple[str, str | None]:
    """Return an argument's name in a build, and why it is another than the one that was given.

    Args:
        name: as the config gives it.
        known: the long flags of the build's parser; empty if they are not known.
        renamed: what the build calls the flags of other releases.
    """
    if not known or name in known:
        return name, None
    if name in renamed:
        return renamed[name], f"--{name} of other releases is called so in this build"
    full = canonical(name)
    return (full, f"the whole name of --{name}") if full in known else (name, None)


def objections(
    name: str,
    value: Any,
    known: Collection[str],
    choices: Mapping[str, Collection[str]],
    removed: Mapping[str, str | None],
) -> list[Document]:
    """Return what a build's parser would say against an argument.

    Args:
        name: as the build says it.
        value: as the config gives it.
        known: the long flags of the build's parser; empty if they are not known.
        choices: the values that the parser allows, by flag.
        removed: flags of earlier releases that the build doesn't have: what says the same, or None.
    """
    if name in _file()["reserved"]:
        why = _file()["reserved"][name]
        return [reason("reserved-flag", f"--{name} is not for the config: {why}")]
    if known and name not in known:
        gone = name in removed
        return [_removed(name, removed[name]) if gone else _unknown(name, known)]
    allowed = choices.get(name)
    wrong = [each for each in _values(value) if allowed and str(each) not in allowed]
    return [_not_offered(name, str(each), allowed or []) for each in wrong]


def wrong_number(name: str, value: Any) -> Document | None:
    """Return what is wrong with the value of an argument that plans calculate with, if anything."""
    rule = _file()["numbers"].get(canonical(name))
    if rule is None or value is None:
        return None
    kind = int if rule["whole"] else int | float
    fits = isinstance(value, kind) and not isinstance(value, bool)
    if fits and "least" in rule:
        fits = value >= rule["least"]
    if fits and "above" in rule:
        fits = rule["above"] < value <= rule["at_most"]
    if fits:
        return None
    right = (
        f"a whole number from {rule['least']} on"
        if "least" in rule
        else f"a number above {rule['above']}, at most {rule['at_most']}"
    )
    return reason("bad-value", f"--{name} is {value!r}; right: {right}")


def words(name: str, value: Any) -> list[str]:
    """Return an argument as a command line spells it.

    True is the bare flag, False and None nothing; a list is the flag followed by its items; a
    mapping is JSON.
    """
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    if isinstance(value, list):
        return [f"--{name}", *(str(item) for item in value)] if value else []
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value, sort_keys=True, separators=(",", ":"))]
    return [f"--{name}", str(value)]


def _values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if isinstance(value, bool) else [value]


def _unknown(name: str, known: Collection[str]) -> Document:
    longer = sorted(flag for flag in known if flag.startswith(name))
    near = longer or difflib.get_close_matches(name, sorted(known), n=3)
    message = f"this build has no --{name}"
    if len(longer) == 1:
        message += f"; its parser would silently take it for --{longer[0]}"
    elif longer:
        message += f"; its parser would call it ambiguous ({', '.join(longer[:4])})"
    hint = f"did you mean {' or '.join(near[:3])}?" if near else None
    return reason("unknown-flag", message, hint=hint)


def _removed(name: str, instead: str | None) -> Document:
    message = f"later releases, as this one, have no --{name}"
    hint = f"write {instead.replace('=', ': ')}" if instead else "nothing stands in its place"
    return reason("removed-flag", message, hint=hint)


def _not_offered(name: str, value: str, allowed: Collection[str]) -> Document:
    near = difflib.get_close_matches(value, sorted(allowed), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it offers {', '.join(allowed)}"
    return reason("unknown-choice", f"this build's --{name} doesn't offer {value}", hint=hint)


@cache
def _file() -> dict[str, Any]:
    return tables.read(__file__, "flags.yaml")
