"""Formats: what the files declare, what the tensors show, and whether they agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bringup import formats

PROJECT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))


def formats_of(entries: dict[str, Any] | None) -> dict[str, str]:
    return {class_: entry["format"] for class_, entry in (entries or {}).items()}


def check_schema(document: dict[str, Any]) -> None:
    schema = yaml.safe_load((PROJECT / "workflow/schemas/format.schema.yaml").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(document)))


def test_the_embedded_checkpoint_is_bf16_everywhere():
    document = formats.describe(str(PROJECT / "resources/arithmetic-moe/bf16"))
    check_schema(document)
    assert document["verdict"] == "consistent"
    assert set(formats_of(document["observed"]).values()) == {"bf16"}
    # 4 layers × 8 experts × 3 matrices of 256 × 256, two bytes each.
    experts = document["observed"]["experts"]
    assert (experts["weights"], experts["parameters"]) == (96, 96 * 256 * 256)
    assert experts["bytes"] == 2 * experts["parameters"]
