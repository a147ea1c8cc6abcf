"""Hold the config against its JSON Schema, in words, and fill in the schema's defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

TYPE_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}

Problem = tuple[tuple[str | int, ...], str]
"""Where, and what is wrong in words."""


def problems(value: Any, schema: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield every way in which ``value`` breaks ``schema``, in the order of the file."""
    for error in Draft202012Validator(schema).iter_errors(value):
        yield from _in_words(error)


def with_defaults(value: dict[str, Any], schema: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return ``value`` with the defaults of ``$defs/part`` filled in, nested ones too."""
    filled = deepcopy(value)
    _fill(filled, schema["$defs"][part], schema)
    return filled


def closest(name: str, known: Any) -> str:
    """Return "; did you mean 'x'?" where a known name is near, else nothing."""
    near = get_close_matches(name, [str(each) for each in known], n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _fill(value: dict[str, Any], part: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    part = _followed(part, schema)
    for key, wanted in part.get("properties", {}).items():
        if key not in value and "default" in wanted:
            value[key] = deepcopy(wanted["default"])
        if isinstance(value.get(key), dict):
            _fill(value[key], wanted, schema)


def _followed(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = part.get("$ref")
    return schema["$defs"][reference.rpartition("/")[2]] if reference else part


def _in_words(error: ValidationError) -> Iterator[Problem]:
    path = tuple(error.absolute_path)
    right = error.schema.get("right") if isinstance(error.schema, Mapping) else None
    if error.validator == "additionalProperties":
        yield from _unknown_keys(error, path)
    elif error.validator == "anyOf" and not right:
        yield from _in_words(best_match(error.context or []) or error)
    elif "propertyNames" in error.absolute_schema_path:
        yield path, f"{error.instance!r} can't be a name here; right: {right or error.message}"
    else:
        yield path, _sentence(error, right)


def _unknown_keys(error: ValidationError, path: tuple[str | int, ...]) -> Iterator[Problem]:
    schema: Any = error.schema
    known = list(schema.get("properties", {}))
    instance: Any = error.instance
    for key in instance:
        if key not in known:
            yield (
                (*path, key),
                f"unknown key{closest(key, known) or '; known: ' + ', '.join(known)}",
            )


def _sentence(error: ValidationError, right: str | None) -> str:
    value: Any = error.instance
    wanted: Any = error.validator_value
    shown = "" if isinstance(value, dict | list) else f"{value!r} "
    if error.validator == "dependentRequired":
        return " and ".join(
            f"{key} goes with {', '.join(needed)} only"
            for key, needed in wanted.items()
            if key in value and not set(needed) <= set(value)
        )
    if right:
        return f"{shown}is not right here; right: {right}"
    match error.validator:
        case "type":
            kinds = [wanted] if isinstance(wanted, str) else wanted
            words = " or ".join(TYPE_WORDS[kind] for kind in kinds)
            return f"{shown}is {TYPE_WORDS[_type(value)]}; right: {words}"
        case "required":
            return f"lacks {', '.join(key for key in wanted if key not in value)}"
        case "enum":
            near = closest(str(value), wanted)
            return f"{shown}is not one of {', '.join(map(str, wanted))}{near}"
        case "minimum":
            return f"{shown}is too small; right: {wanted} or more"
        case "maximum":
            return f"{shown}is too large; right: {wanted} or less"
        case "exclusiveMinimum":
            return f"{shown}is too small; right: more than {wanted}"
        case "minItems" | "minProperties" | "minLength":
            return "is empty"
        case "uniqueItems":
            return "holds the same value twice"
    return error.message


def _type(value: Any) -> str:
    for name, kind in (("boolean", bool), ("integer", int), ("number", float), ("string", str)):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "array" if isinstance(value, list) else "object"
