"""The tables beside this module, and the questions that are put to them."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def table(name: str) -> Any:
    """Return the content of the table ``name``."""
    text = (resources.files(__package__) / f"{name}.yaml").read_text("utf-8")
    return yaml.load(text, Loader=_Loader)


def is_quantized(format_: str) -> bool:
    """Whether a format needs scales or packing; 16- and 32-bit floats don't."""
    return bool(table("formats")[format_]["quantized"])


def fixed_group(format_: str) -> int | None:
    """Return the group size that the format itself fixes, or None."""
    group: int | None = table("formats")[format_].get("group")
    return group


def serves(observed: str, declared: str) -> bool:
    """Whether tensors of the format ``observed`` hold all that ``declared`` promises."""
    return observed == declared or observed in table("formats")[declared].get("serves", ())
