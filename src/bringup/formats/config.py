"""Read config.json: the architecture and the numbers that later stages need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bringup.checkpoint import UnusableError
from bringup.formats.tables import table

CONFIG = "config.json"

LARGEST_MODEL = 10_000
"""Layers; a config that says more is not believed."""

LARGEST_NUMBER = 10**9
"""Of any other number; the largest published are lengths of context, some 10 million."""


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that describes the language model; of most, the whole."""
    for key in table("model")["nested"]:
        part = config.get(key)
        if isinstance(part, dict) and part:
            return language_part(part)
    return config


def architecture(config: Mapping[str, Any]) -> str | None:
    """Return the model class that the config names first.

    Raises:
        UnusableError: `architectures` is no list of names.
    """
    found = config.get("architectures") or language_part(config).get("architectures")
    if found is None:
        return None
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise UnusableError(f"{CONFIG}: architectures: {found!r} is no list of model classes")
    return found[0]


def numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's numbers by the names of model.yaml, null where the config has none.

    Raises:
        UnusableError: a number is no number.
    """
    rules = table("model")
    part = language_part(config)
    model: dict[str, Any] = {
        name: _number(part, config, keys) for name, keys in rules["numbers"].items()
    }
    model["experts"] = model["experts"] or 0
    if model["shared_experts"] is None:
        # Qwen's MoE models have one shared expert and give its size only.
        model["shared_experts"] = 1 if model["shared_expert_intermediate_size"] else 0
    model["kv_heads"] = model["kv_heads"] or model["heads"]
    if model["head_dim"] is None and model["hidden_size"] and model["heads"]:
        model["head_dim"] = model["hidden_size"] // model["heads"]
    model["dtype"] = dtype(config)
    model["state_dtype"] = dtype(config, of="state_dtype")
    return model


def dtype(config: Mapping[str, Any], *, of: str = "dtype") -> str | None:
    """Return the format of weights that no quantization touches, or None where nothing says it.

    Args:
        config: config.json.
        of: another list of keys in model.yaml: ``state_dtype`` is that of recurrent states.
    """
    rules = table("model")
    for part in (language_part(config), config):
        for key in rules[of]:
            word = str(part.get(key)).removeprefix("torch.")
            if word in rules["dtypes"]:
                return str(rules["dtypes"][word])
    return None


def _number(part: Mapping[str, Any], whole: Mapping[str, Any], keys: list[str]) -> Any:
    for key in keys:
        for config in (part, whole):
            value = config.get(key)
            # One for each layer is no number of the model; -1 is how some configs spell null.
            if value is not None and not isinstance(value, list) and value != -1:
                return _checked(key, value)
    return None


def _checked(key: str, value: Any) -> int | float:
    kinds = int | float if key in table("model")["fractions"] else int
    if isinstance(value, kinds) and value is not True and 0 <= value <= LARGEST_NUMBER:
        return value
    raise UnusableError(f"{CONFIG}: {key}: {str(value)[:40]} is no such number of a model")


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer consists of."""

    mixer: Literal["attention", "linear_attention", "mamba", "none"]
    mlp: Literal["dense", "moe", "none"]


ONE_PART_LAYERS = {
    "mamba": Layer("mamba", "none"),
    "moe": Layer("none", "moe"),
    "mlp": Layer("none", "dense"),
}
"""Nemotron-H: a layer is one of these or attention, not attention and a feed-forward part."""


def layers_of(config: Mapping[str, Any], model: Mapping[str, Any]) -> list[Layer]:
    """Return what each layer of the model consists of.

    Raises:
        UnusableError: the number of layers is none that a model has.
    """
    part = language_part(config)
    layers = model["layers"] or 0
    if layers + (model["draft_layers"] or 0) > LARGEST_MODEL:
        raise UnusableError(f"{CONFIG}: {layers!r} layers")
    named = _named_layers(part, layers)
    return [_layer(part, model, number, named[number]) for number in range(layers)]


def compressed_layers(config: Mapping[str, Any], layers: int) -> dict[str, int | None]:
    """Return how many layers compress their KV cache by 4 and by 128, as DeepSeek-V4 does.

    Both are None where no list of ratios says it, or one that also has ratios other than these.

    Args:
        config: config.json.
        layers: of the model; its list may go on with draft layers.
    """
    for key in table("model")["compression"]:
        ratios = language_part(config).get(key)
        if isinstance(ratios, list) and len(ratios) >= layers:
            own = ratios[:layers]
            if set(map(str, own)) <= {"0", "4", "128"}:
                return {f"layers_compressed_{each}": own.count(each) for each in (4, 128)}
    return {"layers_compressed_4": None, "layers_compressed_128": None}


def _named_layers(part: Mapping[str, Any], layers: int) -> list[str]:
    """Return the config's own word for each layer, or ``attention`` for all."""
    rules = table("model")
    for key in rules["layer_types"]:
        words = part.get(key)
        if isinstance(words, list) and len(words) >= layers:
            return [str(word) for word in words]
    for key in rules["layer_pattern"]:
        letters = part.get(key)
        if isinstance(letters, str) and len(letters) >= layers:
            return [rules["pattern_letters"].get(letter, "attention") for letter in letters]
    return ["attention"] * layers


def _layer(part: Mapping[str, Any], model: Mapping[str, Any], number: int, word: str) -> Layer:
    if _one_part_layers(part):
        return ONE_PART_LAYERS.get(word, Layer("attention", "none"))
    mlp: Literal["moe", "dense"] = "moe" if _is_sparse(part, model, number) else "dense"
    return Layer("linear_attention" if word == "linear_attention" else "attention", mlp)


def _one_part_layers(part: Mapping[str, Any]) -> bool:
    rules = table("model")
    return bool(part.get("layers_block_type")) or any(
        part.get(key) for key in rules["layer_pattern"]
    )


def _is_sparse(part: Mapping[str, Any], model: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer has experts: by the keys of DeepSeek, Qwen and GLM configs."""
    if not model["experts"]:
        return False
    kinds = part.get("mlp_layer_types")
    if isinstance(kinds, list) and layer < len(kinds):
        return bool(kinds[layer] == "sparse")
    dense = part.get("mlp_only_layers")
    if layer < (model["first_dense_layers"] or 0) or (isinstance(dense, list) and layer in dense):
        return False
    step = part.get("decoder_sparse_step") or part.get("moe_layer_freq") or 1
    return not isinstance(step, int) or (layer + 1) % step == 0
