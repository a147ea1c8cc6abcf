"""Documents as another stage reads them: through JSON, and as their schema says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

SCHEMAS = Path(__file__).parents[1] / "workflow/schemas"


def schema_of(stage: str) -> Any:
    """Return the schema of a stage's document."""
    return yaml.safe_load((SCHEMAS / f"{stage}.schema.yaml").read_text(encoding="utf-8"))


def validator(schema: Any) -> Draft202012Validator:
    """Return what holds documents against ``schema``, which may name the parts that all share."""
    shared = [
        (f"{part}.schema.yaml", Resource.from_contents(schema_of(part)))
        for part in ("backend", "reason")
    ]
    return Draft202012Validator(schema, registry=Registry().with_resources(shared))


def problems(document: dict[str, Any]) -> list[str]:
    """Return what of ``document`` doesn't fit the schema that it names."""
    stage, _, version = document["schema"].partition("/")
    assert version == "1"
    found = validator(schema_of(stage)).iter_errors(document)
    return [f"{each.json_path}: {each.message}" for each in found]


def checked(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document as it is read back; it must fit the schema that it names."""
    read: dict[str, Any] = json.loads(json.dumps(document))
    assert problems(read) == []
    return read
