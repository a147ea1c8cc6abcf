"""Whether a model fits: weights and KV cache against the memory of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bringup.artifact import Document

GIB = 1 << 30

CPU_SHARE = 1 / 16
"""Share of a CPU host's RAM that the workflow leaves to the KV cache."""

CPU_TOKENS_MAX = 65536
"""More tokens than this no small study on a CPU needs."""

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class Spread:
    """How a server is spread over GPUs: sizes of its tensor, pipeline, data and expert groups."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dp_attention: bool = False
    """Data-parallel attention: the data-parallel ranks share the tensor-parallel GPUs."""

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> Spread:
        """Read the sizes from server arguments by their canonical names."""
        sizes = {name: int(flags.get(f"{name}-size") or 1) for name in ("tp", "pp", "dp", "ep")}
        return cls(**sizes, dp_attention=bool(flags.get("enable-dp-attention")))

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * (1 if self.dp_attention else self.dp)

    def __str__(self) -> str:
        sizes = {"tp": self.tp, "pp": self.pp, "dp": self.dp}
        return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "tp 1"


def kv_bytes_per_token(model: Document, kv_dtype: str | None = None) -> int | None:
    """Return the bytes of KV cache that one token takes in the whole model, or None if unknown."""
    size = DTYPE_BYTES.get(kv_dtype or model.get("dtype") or "bf16", 1)
    layers, heads, width = (model.get(key) for key in ("layers", "kv_heads", "head_dim"))
    if model.get("kv_lora_rank"):
        return int(layers * (model["kv_lora_rank"] + (model.get("qk_rope_head_dim") or 0)) * size)
    if not (layers and heads and width):
        return None
    return int(2 * layers * heads * width * size)


def tokens_on_cpu(model: Document, ram_gib: float) -> int | None:
    """Return how many tokens of KV cache a CPU host is asked for, or None if that is not known."""
    each = kv_bytes_per_token(model)
    if each is None:
        return None
    affordable = int(ram_gib * GIB * CPU_SHARE / each)
    return max(1024, min(CPU_TOKENS_MAX, affordable // 1024 * 1024))
