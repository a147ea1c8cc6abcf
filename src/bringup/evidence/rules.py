"""The tables of this package, read once: failures, log lines, resolved fields, kernel names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def table(name: str) -> Any:
    """Return the table in ``<name>.yaml`` beside this module, every ``pattern`` compiled."""
    text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    return _compiled(yaml.safe_load(text))


def _compiled(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: re.compile(value) if key == "pattern" else _compiled(value)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_compiled(item) for item in node]
    return node
