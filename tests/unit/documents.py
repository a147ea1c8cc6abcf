"""Documents as another stage reads them: through JSON, and as their schema says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

SCHEMAS = Path(__file__).parents[2] / "workflow/schemas"


def checked(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document as it is read back; it must fit the schema that it names."""
    stage = document["schema"].partition("/")[0]
    schema = yaml.safe_load((SCHEMAS / f"{stage}.schema.yaml").read_text())
    read: dict[str, Any] = json.loads(json.dumps(document))
    jsonschema.Draft202012Validator(schema).validate(read)
    return read
