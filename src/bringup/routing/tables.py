"""Read the tables of knowledge, which are YAML files beside the modules that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader where PyYAML has it: ten times as fast on a table of a thousand lines."""


def read(module_file: str, name: str) -> dict[str, Any]:
    """Return the table ``name`` that lies beside a module, whose ``__file__`` is given."""
    text = Path(module_file).with_name(name).read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return loaded
