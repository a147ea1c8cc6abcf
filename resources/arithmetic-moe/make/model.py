"""Qwen3-MoE as plain functions on a dictionary of tensors.

The mathematics of transformers' ``Qwen3MoeForCausalLM`` (the largest difference between the two
on logits in float32 was 8.9e-7), with every expert computed for every token: at this size that
is faster than gathering.

Weights are named as in the checkpoint, without the ending ``.weight``; the experts of a layer
are stacked, ``model.layers.0.mlp.experts.gate_proj`` being [experts, intermediate, hidden].
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 (the name that PyTorch's own documentation uses)
from torch import Tensor

Weights = dict[str, Tensor]
Observer = Callable[[str, Tensor], None]
"""Called with a linear layer's name and its inputs [tokens, features]."""
Block = Callable[[Tensor, Weights, "Shape", float, Observer | None], tuple[Tensor, Tensor]]
"""What computes one layer: ``block``, or ``block`` compiled."""

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
EXPERTS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Shape:
    """The sizes that the mathematics needs, from ``config.json``."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    experts: int
    experts_per_token: int
    rope_theta: float
    epsilon: float

    @classmethod
    def of(cls, folder: Path) -> Shape:
        """Read the sizes of the checkpoint in ``folder``."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return cls(
            vocabulary=config["vocab_size"],
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_size=config["head_dim"],
            intermediate=config["moe_intermediate_size"],
            experts=config["num_experts"],
            experts_per_token=config["num_experts_per_tok"],
            rope_theta=config["rope_theta"],
            epsilon=config["rms_norm_eps"],
        )


def layer_name(layer: int) -> str:
    return f"model.layers.{layer}"


def initial_weights(shape: Shape, seed: int = 0) -> Weights:
    """Return random float32 weights; outputs of residual branches start small."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int, deviation: float) -> Tensor:
        return torch.randn(*size, generator=generator) * deviation

    hidden = shape.hidden
    into = hidden**-0.5
    residual = 1 / math.sqrt(2 * shape.layers)
    heads, kv_heads = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    stacked = (shape.experts, shape.intermediate, hidden)
    weights = {
        "model.embed_tokens": normal(shape.vocabulary, hidden, deviation=0.08),
        "lm_head": normal(shape.vocabulary, hidden, deviation=0.02),
        "model.norm": torch.ones(hidden),
    }
    for layer in range(shape.layers):
        name = layer_name(layer)
        weights |= {
            f"{name}.input_layernorm": torch.ones(hidden),
            f"{name}.post_attention_layernorm": torch.ones(hidden),
            f"{name}.self_attn.q_norm": torch.ones(shape.head_size),
            f"{name}.self_attn.k_norm": torch.ones(shape.head_size),
            f"{name}.self_attn.q_proj": normal(heads, hidden, deviation=into),
            f"{name}.self_attn.k_proj": normal(kv_heads, hidden, deviation=into),
            f"{name}.self_attn.v_proj": normal(kv_heads, hidden, deviation=into),
            f"{name}.self_attn.o_proj": normal(hidden, heads, deviation=into * residual),
            f"{name}.mlp.gate": normal(shape.experts, hidden, deviation=into),
            f"{name}.mlp.experts.gate_proj": normal(*stacked, deviation=into),
            f"{name}.mlp.experts.up_proj": normal(*stacked, deviation=into),
            f"{name}.mlp.experts.down_proj": normal(
                shape.experts,
                hidden,
                shape.intermediate,
                deviation=shape.intermediate**-0.5 * residual,
            ),
        }
    return weights


def from_checkpoint(tensors: Mapping[str, Tensor], shape: Shape) -> Weights:
    """Return the checkpoint's unquantized tensors under this module's names, in float32."""
    weights = {
        name.removesuffix(".weight"): tensor.float()
        for name, tensor in tensors.items()
        if ".experts." not in name
    }
    for layer in range(shape.layers):
        experts = f"{layer_name(layer)}.mlp.experts"
        for kind in EXPERTS:
            one_by_one = [
                tensors[f"{experts}.{expert}.{kind}.weight"] for expert in range(shape.experts)
            ]
            weights[f"{experts}.{kind}"] = torch.stack(one_by_one).float()
    return weights


def to_checkpoint(weights: Weights) -> dict[str, Tensor]:
    """Return ``weights`` as the checkpoint stores them: bf16, one tensor for each expert."""
    tensors = {}
    for name, tensor in weights.items():
        stored = tensor.detach().to("cpu", torch.bfloat16)
        if ".experts." in name:
            experts, _, kind = name.rpartition(".")
            for expert, matrix in enumerate(stored):
                tensors[f"{experts}.{expert}.{kind}.weight"] = matrix.clone()
        else:
            tensors[f"{name}.weight"] = stored.clone()
    return tensors


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float() if x.dtype == torch.bfloat16 else x
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return normed.to(x.dtype) * weight.to(x.dtype)


def rope_tables(length: int, shape: Shape, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each [length, head size]."""
    wide = torch.promote_types(like.dtype, torch.float32)
    steps = torch.arange(0, shape.head_size, 2, device=like.device).to(wide) / shape.head_size
    positions = torch.arange(length, device=like.device).to(wide)
    angles = torch.outer(positions, 1.0 / shape.rope_theta**steps)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return (x * cosines + torch.cat([-second, first], -1) * sines).to(x.dtype)


def attention(
    x: Tensor, weights: Weights, name: str, shape: Shape, observe: Observer | None
) -> Tensor:
    """Causal grouped-query attention of layer part ``name`` over x [batch, length, hidden]."""
    batch, length, _ = x.shape

    def heads(kind: str, count: int) -> Tensor:
        projected = x @ weights[f"{name}.{kind}"].to(x.dtype).T
        return projected.view(batch, length, count, shape.head_size)

    q = rms_norm(heads("q_proj", shape.heads), weights[f"{name}.q_norm"], shape.epsilon)
    k = rms_norm(heads("k_proj", shape.kv_heads), weights[f"{name}.k_norm"], shape.epsilon)
    v = heads("v_proj", shape.kv_heads).transpose(1, 2)
    cosines, sines = rope_tables(length, shape, x)
    q = rotated(q.transpose(1, 2), cosines, sines)
    k = rotated(k.transpose(1, 2), cosines, sines)
    shared = shape.heads // shape.kv_heads
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
    if observe:
        for kind in ("q_proj", "k_proj", "v_proj"):
            observe(f"{name}.{kind}", x.flatten(0, 1))
        observe(f"{name}.o_proj", mixed.flatten(0, 1))
    return mixed @ weights[f"{name}.o_proj"].to(x.dtype).T


def experts(
    x: Tensor, weights: Weights, name: str, shape: Shape, observe: Observer | None
) -> tuple[Tensor, Tensor]:
    """Return the mixture of experts over x [tokens, hidden], and its load-balancing loss."""
    wide = torch.promote_types(x.dtype, torch.float32)
    chances = (x @ weights[f"{name}.gate"].to(x.dtype).T).to(wide).softmax(-1)
    top, chosen = chances.topk(shape.experts_per_token, -1)
    shares = torch.zeros_like(chances).scatter(1, chosen, top / top.sum(-1, keepdim=True))

    def every_expert(kind: str) -> Tensor:
        stacked = weights[f"{name}.experts.{kind}"].to(x.dtype)
        return (x @ stacked.view(-1, shape.hidden).T).view(-1, shape.experts, shape.intermediate)

    active = F.silu(every_expert("gate_proj")) * every_expert("up_proj")
    if observe:
        for expert in range(shape.experts):
            routed = shares[:, expert] > 0
            observe(f"{name}.experts.{expert}.gate_proj", x[routed])
            observe(f"{name}.experts.{expert}.up_proj", x[routed])
            observe(f"{name}.experts.{expert}.down_proj", active[routed, expert])
    down = weights[f"{name}.experts.down_proj"].to(x.dtype).permute(0, 2, 1)
    weighted = active * shares.to(x.dtype)[..., None]
    output = weighted.flatten(1) @ down.reshape(-1, shape.hidden)
    load = (shares > 0).to(wide).mean(0) / shape.experts_per_token
    return output, shape.experts * (load * chances.mean(0)).sum()


def block(
    x: Tensor, weights: Weights, shape: Shape, noise: float, observe: Observer | None
) -> tuple[Tensor, Tensor]:
    """Return x [batch, length, hidden] after one layer, and the layer's load-balancing loss.

    Args:
        x: the layer's input.
        weights: the layer's own, named without the layer.
        shape: the model's sizes.
        noise: as for ``forward``.
        observe: as for ``forward``, but for names without the layer.
    """
    normed = rms_norm(x, weights["input_layernorm"], shape.epsilon)
    x = x + attention(normed, weights, "self_attn", shape, observe)
    normed = rms_norm(x, weights["post_attention_layernorm"], shape.epsilon)
    if noise:
        normed = normed + noise * torch.randn_like(normed)
    mixed, loss = experts(normed.flatten(0, 1), weights, "mlp", shape, observe)
    return x + mixed.view(x.shape), loss


def layer_weights(weights: Weights, layer: int) -> Weights:
    """Return the weights of one layer, named without it."""
    start = f"{layer_name(layer)}."
    return {
        name.removeprefix(start): value for name, value in weights.items() if name.startswith(start)
    }


def forward(
    weights: Weights,
    ids: Tensor,
    shape: Shape,
    *,
    dtype: torch.dtype = torch.bfloat16,
    noise: float = 0.0,
    observe: Observer | None = None,
    block: Block = block,
) -> tuple[Tensor, Tensor]:
    """Return the last hidden states [batch, length, hidden] and the mean load-balancing loss.

    Args:
        weights: as ``from_checkpoint`` returns them.
        ids: token ids, [batch, length], padded on the right.
        shape: the model's sizes.
        dtype: in which to compute.
        noise: deviation of the noise added to the experts' inputs (training only).
        observe: is shown the inputs of every linear layer; those of experts hold only the
            tokens routed to them.
        block: computes one layer; a compiled ``block`` is faster on a GPU.
    """
    x = F.embedding(ids, weights["model.embed_tokens"].to(dtype))
    balance = torch.zeros((), device=ids.device)
    for layer in range(shape.layers):
        seen = _of_layer(layer, observe) if observe else None
        x, loss = block(x, layer_weights(weights, layer), shape, noise, seen)
        balance = balance + loss
    return rms_norm(x, weights["model.norm"], shape.epsilon), balance / shape.layers


def _of_layer(layer: int, observe: Observer) -> Observer:
    return lambda name, inputs: observe(f"{layer_name(layer)}.{name}", inputs)
