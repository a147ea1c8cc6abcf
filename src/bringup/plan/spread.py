"""How a server is spread over GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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

    @property
    def attention_tp(self) -> int:
        return max(1, self.tp // self.dp) if self.dp_attention else self.tp

    def __str__(self) -> str:
        sizes = {"tp": self.tp, "pp": self.pp, "dp": self.dp}
        return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "tp 1"
