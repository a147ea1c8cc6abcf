"""Which modules a checkpoint has, and which part of the model each belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from bringup.formats.config import Layer
from bringup.formats.tables import table

EXPERTS = re.compile(r"(^|\.)experts(\.|$)")


@dataclass(frozen=True, slots=True)
class Module:
    """A module with a weight, by the name that the checkpoint's tensors have."""

    name: str
    class_: str
    """The module class of docs/design.md §1."""

    @property
    def is_expert(self) -> bool:
        """Whether it is a routed expert, also one of a draft layer."""
        return bool(EXPERTS.search(self.name))

    @property
    def is_projection(self) -> bool:
        """Whether its name alone says that it is a linear layer."""
        return bool(_pattern("projection").search(self.name))


def classify(name: str, layers: int | None) -> str:
    """Return the module class of the module ``name`` in a model of ``layers`` layers."""
    if _pattern("towers").search(name):
        return "other"
    layer = _pattern("layer").search(name)
    if layer is not None and layers is not None and int(layer["number"]) >= layers:
        return "draft"
    return next((class_ for pattern, class_ in _rules() if pattern.search(name)), "other")


def expected(
    architecture: str | None, model: Mapping[str, Any], layers: Sequence[Layer]
) -> list[tuple[Module, int]]:
    """Return the modules that a model has by its config alone, each with how many it stands for.

    Expert 0 stands for all experts of its layer.
    """
    layout = _layout(str(architecture))
    names: list[str] = []
    for number, layer in enumerate(layers):
        below = layout["layer"].format(layer=number)
        names += [f"{below}.{part}" for part in _parts(layout, layer, model)]
    names += [layout["lm_head"], layout["embeddings"], *_draft(layout, model)]
    modules = [Module(name, classify(name, model["layers"])) for name in names]
    return [(module, model["experts"] if module.is_expert else 1) for module in modules]


def _parts(layout: Mapping[str, Any], layer: Layer, model: Mapping[str, Any]) -> Iterator[str]:
    yield from layout.get(layer.mixer, layout["attention"] if layer.mixer != "none" else ())
    if layer.mlp == "moe":
        yield from layout["experts"]
        if model["shared_experts"]:
            yield from layout["shared_experts"]
    elif layer.mlp == "dense":
        yield from layout["dense_mlp"]


def _draft(layout: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[str]:
    """Yield the modules of the draft layers: the attention and experts of a usual layer."""
    if not layout["draft"] or model["layers"] is None:
        return
    mlp = layout["experts"] if model["experts"] else layout["dense_mlp"]
    for number in range(model["draft_layers"] or 0):
        after = layout["draft"] == "after"
        below = (
            layout["layer"].format(layer=model["layers"] + number)
            if after
            else layout["draft"].format(layer=number)
        )
        yield from (f"{below}.{part}" for part in [*layout["attention"], *mlp])


@cache
def _rules() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(row["pattern"]), row["class"]) for row in table("modules")["classes"]]


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(table("modules")[name])


def _layout(architecture: str) -> dict[str, Any]:
    layouts: list[dict[str, Any]] = table("modules")["layouts"]
    return next(each for each in layouts if {architecture, "*"} & set(each["architectures"]))
