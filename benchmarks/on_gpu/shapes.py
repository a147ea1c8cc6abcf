"""Checkpoints of public shapes without their weights: what a plan reads, and nothing more.

    python benchmarks/on_gpu/shapes.py FOLDER

Each name of shapes.yaml becomes a folder with its config.json and a model.safetensors whose header
names every tensor and whose data is a hole: gigabytes on paper, kilobytes on the disk.  Serve them
with ``load-format: dummy``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import yaml

BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
Tensor = tuple[str, str, list[int]]
"""Name, type as safetensors spells it, shape."""


def tensors(config: dict[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors of a Llama, Qwen3 or Qwen3-MoE checkpoint with this configuration."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", "BF16", [vocabulary, hidden]
    for layer in range(config["num_hidden_layers"]):
        yield from _layer(f"model.layers.{layer}", config)
    yield "model.norm.weight", "BF16", [hidden]
    yield "lm_head.weight", "BF16", [vocabulary, hidden]


def _layer(name: str, config: dict[str, Any]) -> Iterator[Tensor]:
    hidden = config["hidden_size"]
    width = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = (config[f"num_{each}_heads"] * width for each in ("attention", "key_value"))
    quantized = config.get("quantization_config")
    for part, shape in (
        ("q", [queries, hidden]),
        ("k", [keys, hidden]),
        ("v", [keys, hidden]),
        ("o", [hidden, queries]),
    ):
        yield from _linear(f"{name}.self_attn.{part}_proj", shape, quantized)
    if config["model_type"].startswith("qwen3"):
        for part in ("q", "k"):
            yield f"{name}.self_attn.{part}_norm.weight", "BF16", [width]
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.{norm}.weight", "BF16", [hidden]
    if experts := config.get("num_experts"):
        yield f"{name}.mlp.gate.weight", "BF16", [experts, hidden]
    mlps = [f"{name}.mlp.experts.{number}" for number in range(experts)] if experts else []
    size = config["moe_intermediate_size" if experts else "intermediate_size"]
    for mlp in mlps or [f"{name}.mlp"]:
        yield from _linear(f"{mlp}.gate_proj", [size, hidden], quantized)
        yield from _linear(f"{mlp}.up_proj", [size, hidden], quantized)
        yield from _linear(f"{mlp}.down_proj", [hidden, size], quantized)


def _linear(name: str, shape: list[int], quantized: dict[str, Any] | None) -> Iterator[Tensor]:
    """Yield a linear layer's weight and, where it is in FP8, its scales."""
    yield f"{name}.weight", "F8_E4M3" if quantized else "BF16", shape
    if quantized and (block := quantized.get("weight_block_size")):
        blocks = [-(-side // part) for side, part in zip(shape, block, strict=True)]
        yield f"{name}.weight_scale_inv", "BF16", blocks
    elif quantized:
        yield f"{name}.weight_scale", "BF16", [1]
        yield f"{name}.input_scale", "BF16", [1]


def write(folder: Path, config: dict[str, Any]) -> int:
    """Write a checkpoint of this shape; return the bytes of its tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, kind, shape in tensors(config):
        start, end = end, end + prod(shape) * BYTES[kind]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return end


def main() -> None:
    """Write all of them."""
    shapes = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text(encoding="utf-8"))
    for name, config in shapes.items():
        size = write(Path(sys.argv[1]) / name, config)
        print(f"{name}: {size / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
