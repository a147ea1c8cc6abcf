"""Whether a model fits: weights and KV cache against the memory of a GPU, as SGLang divides it.

SGLang gives the KV cache what is free after the weights, less the part of the memory that was free
before them which ``--mem-fraction-static`` leaves out (sglang 0.5.16
mem_cache/kv_cache_configurator.py, ``_profile_available_bytes``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from bringup.artifact import Document, reason
from bringup.plan import kv
from bringup.plan.spread import Spread
from bringup.routing import tables

GIB = 1 << 30
MIB_IN_GIB = 1024

CPU_SHARE = 1 / 16
"""Share of a CPU host's RAM that the workflow leaves to the KV cache."""

CPU_TOKENS_MAX = 65536
"""More tokens than this no small study on a CPU needs."""

TIGHT_KV_SHARE = 0.1
"""A KV cache below this share of the static memory is called tight."""

SHARDED = ("experts", "attention", "dense_mlp", "shared_experts", "lm_head", "embeddings", "draft")
"""Module classes whose weights tensor parallelism divides; the others stand whole on every GPU."""

ONCE = ("lm_head", "embeddings", "other")
"""Module classes that pipeline parallelism does not divide: one stage has them whole."""


@dataclass(frozen=True)
class Fit:
    """One model on the GPUs of one server."""

    format: Document
    """``format.json``."""
    flags: Mapping[str, Any]
    """Server arguments by their canonical names."""
    gpu_memory_gib: float
    """Of the smallest of the GPUs, as the driver counts it."""
    version: str | None = None
    gpu: str | None = None
    """``sm90`` …, where it is known."""
    draft: Document | None = None
    """``format.json`` of a draft checkpoint of its own, where there is one."""

    @cached_property
    def spread(self) -> Spread:
        return Spread.of(self.flags)

    @cached_property
    def usable_gib(self) -> float:
        """What is free before the weights come."""
        rules = _rules()
        return float(self.gpu_memory_gib * rules["free_share"] - rules["free_less_gib"])

    @cached_property
    def fraction(self) -> float:
        given = self.flags.get("mem-fraction-static")
        return float(given) if given is not None else self._default_fraction()

    @cached_property
    def graph_max_bs(self) -> int:
        """The largest decode batch that has a CUDA graph; 0 where graphs are off."""
        if self.flags.get("disable-cuda-graph") or self.flags.get("disable-decode-cuda-graph"):
            return 0
        sizes = self.flags.get("cuda-graph-bs-decode") or self.flags.get("cuda-graph-bs")
        if sizes:
            return max(int(size) for size in (sizes if isinstance(sizes, list) else [sizes]))
        given = self.flags.get("cuda-graph-max-bs-decode") or self.flags.get("cuda-graph-max-bs")
        if given:
            return int(given)
        return int(self._tier["graph_max_bs_tp4" if self.spread.tp >= 4 else "graph_max_bs"])

    @property
    def drafts(self) -> bool:
        """Whether a draft model proposes tokens."""
        return self.flags.get("speculative-algorithm") not in (None, "NGRAM")

    @cached_property
    def weights(self) -> dict[str, float] | None:
        """GiB of weights on one GPU, by module class; None if sizes are not known."""
        observed = self.format["observed"]
        if observed:
            parts = {name: each["bytes"] for name, each in observed.items()}
        elif self.format["weights_bytes"]:
            parts = {"experts" if "experts" in self.format["classes"] else "dense_mlp": 0}
            parts = dict.fromkeys(parts, self.format["weights_bytes"])
        else:
            return None
        if self.draft or not self.drafts:
            parts.pop("draft", None)
        if self.draft and self.drafts:
            parts["draft"] = self.draft["weights_bytes"] or 0
        return {name: self._share(name, size) / GIB for name, size in sorted(parts.items())}

    @cached_property
    def weights_gib(self) -> float | None:
        if self.weights is None:
            return None
        return sum(self.weights.values()) + float(_rules()["weights_extra_gib"])

    @cached_property
    def cache(self) -> kv.Cache | None:
        """How the KV cache's memory is spent; None if config.json doesn't tell."""
        return kv.Question(
            self.format, self.flags, self.spread, self.version, self.gpu, self._draft_layers()
        ).answer()

    def _draft_layers(self) -> int:
        if not self.drafts:
            return 0
        model = self.draft["model"] if self.draft else self.format["model"]
        own = model.get("draft_layers")
        return int(own or (model["layers"] if self.draft else 0) or 1)

    @cached_property
    def kv_gib(self) -> float | None:
        """What the static memory leaves to the KV cache; below zero if the weights don't fit."""
        if self.weights_gib is None:
            return None
        return self.usable_gib * self.fraction - self.weights_gib

    @cached_property
    def kv_tokens(self) -> int | None:
        """Tokens that the KV cache of one replica holds (``max_total_num_tokens``)."""
        if self.kv_gib is None or self.cache is None:
            return None
        tokens = self.cache.tokens(self.kv_gib * GIB)
        asked = self.flags.get("max-total-tokens")
        return min(tokens, int(asked)) if asked else tokens

    @cached_property
    def requests(self) -> int | None:
        """Requests that one replica keeps states for; None where requests keep none."""
        if self.kv_gib is None or self.cache is None:
            return None
        return self.cache.requests(self.kv_gib * GIB)

    def document(self) -> Document:
        """Return the fit as the plan holds it; sizes are GiB on one GPU, null where not known."""
        return {
            "gpu_memory_gib": self.gpu_memory_gib,
            "usable_gib": round(self.usable_gib, 1),
            "mem_fraction_static": round(self.fraction, 3),
            "weights_gib": _rounded(self.weights_gib),
            "weights": None if self.weights is None else _round_all(self.weights),
            "kv_gib": _rounded(self.kv_gib),
            "kv_bytes_per_token": _rounded(self.cache.token_bytes if self.cache else None),
            "kv_fixed_gib": _rounded(self.cache.fixed_bytes / GIB if self.cache else None),
            "kv_tokens": self.kv_tokens,
            "requests": self.requests,
            "left_gib": round(self.usable_gib * (1 - self.fraction), 1),
            "graph_max_bs": self.graph_max_bs,
        }

    def objections(self) -> Iterator[Document]:
        """Yield what can't be: sizes that don't divide, weights that don't fit."""
        yield from _not_divisible(self.format, self.spread)
        if self.kv_gib is not None and self.kv_gib <= 0:
            yield reason("does-not-fit", self._too_large(), hint=self._way_out())

    def warnings(self) -> Iterator[Document]:
        """Yield what is tight."""
        if self.kv_gib is None or self.kv_gib <= 0:
            return
        static = self.usable_gib * self.fraction
        if self.kv_gib < TIGHT_KV_SHARE * static:
            message = (
                f"weights take {self.weights_gib:.1f} of the {static:.1f} GiB that "
                f"mem-fraction-static {self.fraction:g} gives; "
                f"{self.kv_gib:.1f} GiB are left to the KV cache"
            )
            yield {"class": "tight-memory", "message": message}
        left, wanted = self.usable_gib * (1 - self.fraction), self._reserve_gib()
        if left < wanted / 2:
            message = (
                f"mem-fraction-static {self.fraction:g} leaves {left:.1f} GiB to activations and "
                f"CUDA graphs, for which SGLang's own default keeps {wanted:.1f}; lower it if the "
                "server runs out of memory while it captures graphs"
            )
            yield {"class": "tight-memory", "message": message}

    @property
    def _tier(self) -> Document:
        tiers: list[Document] = _rules()["tiers"]
        return next(
            tier
            for tier in tiers
            if tier["below_gib"] is None or self.gpu_memory_gib < tier["below_gib"]
        )

    def _reserve_gib(self) -> float:
        """Return what SGLang's default keeps for activations and graphs."""
        rules = _rules()["reserve"]
        chunk = int(self.flags.get("chunked-prefill-size") or self._tier["chunked_prefill"])
        mib = rules["constant"]
        mib += max(chunk, rules["least_activation_tokens"]) * rules["per_activation_token"]
        mib += self.spread.tp * self.spread.pp * rules["per_gpu_of_the_server"]
        mib += self.graph_max_bs * rules["per_graph_batch"]
        if self.spread.dp_attention:
            mib += self.graph_max_bs * self.spread.dp * rules["dp_attention_per_graph_batch"]
        latent = bool(self.format["model"].get("kv_lora_rank"))
        mib += rules["prefill_graphs_latent_attention" if latent else "prefill_graphs"]
        if self.gpu_memory_gib > 60:
            mib = max(mib, rules["least_above_60_gib"])
        return float(mib) / MIB_IN_GIB

    def _default_fraction(self) -> float:
        return round((self.gpu_memory_gib - self._reserve_gib()) / self.gpu_memory_gib, 3)

    def _share(self, name: str, size: int) -> float:
        """Return the bytes of a module class that one GPU holds."""
        stages = 1 if name in ONCE else self.spread.pp
        if name not in SHARDED:
            return size / stages
        if name == "attention":
            whole = self._replicated_attention_share()
            return size * (whole + (1 - whole) / self.spread.attention_tp) / stages
        return size / self.spread.tp / stages

    def _replicated_attention_share(self) -> float:
        """Return the share of the attention's weights that stand whole on every GPU.

        Latent attention projects down to its ranks on every GPU alike.
        """
        model = self.format["model"]
        rank = model.get("q_lora_rank")
        if not rank:
            return 0.0
        down = rank + (model.get("kv_lora_rank") or model["head_dim"])
        up = rank * model["heads"] * (model.get("qk_nope_head_dim") or model["head_dim"])
        out = model["heads"] * (model.get("v_head_dim") or model["head_dim"]) * model["hidden_size"]
        replicated = down * model["hidden_size"]
        return float(replicated / (replicated + up + out))

    def _too_large(self) -> str:
        static = self.usable_gib * self.fraction
        return (
            f"the weights take {self.weights_gib:.1f} GiB of each GPU ({self.spread}); "
            f"mem-fraction-static {self.fraction:g} of {self.usable_gib:.1f} GiB is {static:.1f}"
        )

    def _way_out(self) -> str:
        assert self.weights_gib is not None
        needed = self.weights_gib / self.usable_gib / (1 - TIGHT_KV_SHARE)
        if needed < 0.95:
            return f"mem-fraction-static from {needed:.2f} on would do, or a larger tp-size"
        return "a larger tp-size, or GPUs with more memory"


def tokens_on_cpu(format: Document, ram_gib: float) -> int | None:
    """Return how many tokens of KV cache a CPU host is asked for, or None if that is not known."""
    cache = Fit(format, {}, ram_gib).cache
    if cache is None:
        return None
    affordable = int(ram_gib * GIB * CPU_SHARE / cache.token_bytes)
    return max(1024, min(CPU_TOKENS_MAX, affordable // 1024 * 1024))


def _not_divisible(format: Document, spread: Spread) -> Iterator[Document]:
    """Yield what can't be divided over the GPUs."""
    model = format["model"]
    tp, moe_tp = spread.tp, max(1, spread.tp // spread.ep)
    for what, number, parts in (
        ("attention heads", model["heads"], spread.attention_tp),
        ("experts", model["experts"], spread.ep),
        ("GPUs of tp-size", tp, spread.ep),
        ("GPUs of tp-size", tp, spread.dp if spread.dp_attention else 1),
    ):
        if number and number % parts:
            yield reason("does-not-divide", f"{number} {what} don't divide into {parts}")
    if model["layers"] and spread.pp > model["layers"]:
        yield reason("does-not-divide", f"{model['layers']} layers don't make {spread.pp} stages")
    kv_heads, parts = model["kv_heads"], spread.attention_tp
    if kv_heads and kv_heads % parts and parts % kv_heads:
        yield reason("does-not-divide", f"{kv_heads} KV heads don't divide into {parts}")
    for name, key, parts in (
        ("experts", "moe_intermediate_size", moe_tp),
        ("dense_mlp", "intermediate_size", tp),
    ):
        group, size = _group(format["classes"].get(name)), model[key]
        if group and size and size % (parts * group):
            message = (
                f"{key} {size} over {parts} GPUs is {size / parts:g}, which scales for "
                f"{group} weights each don't divide"
            )
            yield reason("does-not-divide", message)


def _group(class_: Document | None) -> int | None:
    """Return how many weights share a scale along the side that tensor parallelism cuts."""
    size = class_["group_size"] if class_ else None
    return int(size[0]) if isinstance(size, list) else size


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _round_all(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}


@cache
def _rules() -> Document:
    return tables.read(__file__, "memory.yaml")
