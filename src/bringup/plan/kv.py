"""The KV cache of a server: what a token takes on one GPU, and what is taken whatever the tokens.

After SGLang's own arithmetic: 0.5.16 and 0.5.23 model_executor/pool_configurator.py, for recurrent
states also 0.5.13.post1 model_executor/model_runner_kv_cache_mixin.py and 0.5.23
mem_cache/kv_cache_configurator.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from bringup.artifact import Document
from bringup.plan.spread import Spread
from bringup.routing import tables, versions

NUMBER_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5625}
"""Bytes of one number in the cache; NVFP4 has one byte of scale for 16 numbers."""


@dataclass(frozen=True)
class Cache:
    """How the memory of the KV cache on one GPU is spent."""

    token_bytes: float
    fixed_bytes: float = 0.0
    """Taken whatever the number of tokens."""
    share: float = 1.0
    """Of the rest, what tokens get; recurrent states get the other part."""
    state_bytes: float | None = None
    """Recurrent states of one slot; None where the model has none or their size is not known."""
    slots: int | None = None
    """Slots of states that the flags or the build fix; None where the memory decides."""
    slots_per_request: int = 1

    def tokens(self, available_bytes: float) -> int:
        """Return how many tokens fit (``max_total_num_tokens``)."""
        left = (available_bytes - self.fixed_bytes) * self.share
        return max(0, int(left / self.token_bytes))

    def requests(self, available_bytes: float) -> int | None:
        """Return how many requests there are states for, or None where requests keep none."""
        if self.slots is not None:
            return self.slots // self.slots_per_request
        if not self.state_bytes:
            return None
        slots = int(available_bytes * (1 - self.share) / self.state_bytes) - 1
        return max(0, slots // self.slots_per_request)


def stored(format: Document, flags: Mapping[str, Any], gpu: str | None) -> str:
    """Return the format of the numbers in the cache, a key of ``NUMBER_BYTES``.

    Args:
        format: ``format.json``.
        flags: server arguments by their canonical names.
        gpu: ``sm90`` …, where it is known.
    """
    asked = str(flags.get("kv-cache-dtype") or "auto")
    model, special = format["model"], _rules()["attention"].get(format["architecture"], {})
    if asked.startswith("fp8") or special.get("compressed"):
        return "fp8"
    if asked in ("nvfp4", "fp4_e2m1", "fp4_mx_block16"):
        return "nvfp4"
    if asked == "auto":
        if model.get("kv_lora_rank") and model.get("index_head_dim"):
            return "fp8" if _is_blackwell(gpu) else "bf16"  # whatever the checkpoint declares
        declared = (format.get("kv_cache") or {}).get("format")
        if declared in NUMBER_BYTES:
            return str(declared)
    dtype = model.get("dtype")
    return dtype if dtype in NUMBER_BYTES else "bf16"


def _is_blackwell(gpu: str | None) -> bool:
    return gpu is not None and gpu.startswith("sm") and int(gpu.removeprefix("sm")) >= 100


@dataclass(frozen=True)
class Question:
    """Whose cache, on what."""

    format: Document
    """``format.json``."""
    flags: Mapping[str, Any]
    """Server arguments by their canonical names."""
    spread: Spread
    version: str | None = None
    gpu: str | None = None
    """``sm90`` …, where it is known."""
    draft_layers: int = 0
    """Layers of the draft model, if there is one: each takes what one of the model takes."""

    @property
    def model(self) -> Document:
        model: Document = self.format["model"]
        return model

    @property
    def special(self) -> Document:
        """What memory.yaml says of the architecture's attention."""
        rules: Document = _rules()["attention"].get(self.format["architecture"], {})
        return rules

    def answer(self) -> Cache | None:
        """Return how the cache is spent, or None where config.json doesn't tell."""
        layers = self._layers()
        if not layers or self.format["architecture"] in _rules()["unknown_attention"]:
            return None
        if self.special.get("compressed"):
            return self._compressed(layers)
        of_layers = self._token_bytes(layers)
        if of_layers is None:
            return None
        token = of_layers * (1 + self.draft_layers / layers) / self.spread.pp
        return self._with_states(token) if self._recurrent_layers() else Cache(token)

    def _layers(self) -> int:
        """Return the number of layers that keep keys and values of every token."""
        if self._recurrent_layers():
            return int(self.model.get("attention_layers") or 0)
        return int(self.model["layers"] or 0)

    def _recurrent_layers(self) -> int:
        kinds = ("linear_attention_layers", "mamba_layers")
        return sum(int(self.model.get(kind) or 0) for kind in kinds)

    def _token_bytes(self, layers: int) -> float | None:
        """Return the bytes of one token in all layers, on one GPU of a stage."""
        if self.model.get("kv_lora_rank"):
            return layers * self._latent_bytes()
        heads, width = self.model["kv_heads"] or self.model["heads"], _head_width(self.model)
        if not heads or not width:
            return None
        each = 2 * max(1, heads // self.spread.attention_tp) * width * self._number_bytes()
        if "sliding_every" in self.special:
            sliding = layers // self.special["sliding_every"]
            return float(each * (layers - sliding + sliding * self._sliding_ratio()))
        return float(each * layers)

    def _latent_bytes(self) -> float:
        """Return the bytes of one token in one layer of latent attention."""
        rank, rope = self.model["kv_lora_rank"], self.model["qk_rope_head_dim"]
        index = self.model.get("index_head_dim")
        if not index:
            return float((rank + rope) * self._number_bytes())
        # Sparse attention: 8-bit keys of the index beside it, and from Hopper down an 8-bit cache
        # keeps scales and the rotary part in 16 bits.
        if stored(self.format, self.flags, self.gpu) != "fp8":
            latent = (rank + rope) * NUMBER_BYTES["bf16"]
        elif _is_blackwell(self.gpu):
            latent = rank + rope
        else:
            latent = rank + rank // 128 * 4 + rope * 2
        return float(latent + index + index // 128 * 4)

    def _number_bytes(self) -> float:
        return NUMBER_BYTES[stored(self.format, self.flags, self.gpu)]

    def _sliding_ratio(self) -> float:
        return float(self.flags.get("swa-full-tokens-ratio") or self.special["sliding_ratio"])

    def _with_states(self, token: float) -> Cache:
        """Return the cache of a model in which some layers keep a recurrent state instead.

        The states get ``mamba-full-memory-ratio`` times the memory that tokens get, unless the
        flags say for how many requests there are any.
        """
        state = self._state_bytes()
        radix = not self.flags.get("disable-radix-cache")
        strategy = str(self.flags.get("mamba-radix-cache-strategy") or "auto")
        each = _rules()["state_slots"].get(strategy, 1) if radix else 1
        asked = self.flags.get("max-mamba-cache-size")
        if asked is None and not radix:
            asked = self.flags.get("max-running-requests")
        ratio = float(self.flags.get("mamba-full-memory-ratio") or _rules()["state_ratio"])
        if asked is None or state is None:
            return Cache(token, 0.0, 1 / (1 + ratio), state, None, each)
        slots = max(1, int(asked) // (self.spread.dp if self.spread.dp_attention else 1))
        return Cache(token, (slots + 1) * state, 1.0, state, slots, each)

    def _state_bytes(self) -> float | None:
        """Return the bytes of one slot of states in the layers of one GPU, or None."""
        sizes = [self.model.get(f"state_{each}") for each in _STATE_SIZES]
        if None in sizes:
            return None
        heads, width, size, groups, kernel = (int(each or 0) for each in sizes)
        tp = self.spread.attention_tp
        asked = _STATE_TYPES.get(str(self.flags.get("mamba-ssm-dtype")))
        number = NUMBER_BYTES[asked or self.model.get("state_dtype") or "fp32"]
        columns = (heads * width + 2 * -(-groups // tp) * tp * size) / tp
        layer = heads / tp * width * size * number + columns * (kernel - 1) * NUMBER_BYTES["bf16"]
        return layer * self._recurrent_layers() / self.spread.pp

    def _compressed(self, layers: int) -> Cache | None:
        """Return the caches of DeepSeek-V4: a window of all layers, compressed tokens of most."""
        model, version = self.model, versions.parse(self.version)
        fours, many = model.get("layers_compressed_4"), model.get("layers_compressed_128")
        window, width = model["sliding_window"], model["head_dim"]
        if fours is None or many is None or not (window and width):
            return None
        paged = versions.within(version, ">=0.5.21")
        row = width + model["qk_rope_head_dim"] + 8
        index = model.get("index_head_dim") or 0
        speculative = self.draft_layers > 0
        ring, long_ring = (16, 256) if speculative else (8, 128)
        states = ring / (_PAGE if paged else window) * 16 * (width + index) * fours
        token = self._sliding_ratio() * (_padded(row, _PAGE, paged) * layers + states)
        token += (_padded(row, _PAGE // 4, paged) + index + index // 128 * 4) / 4 * fours
        token += _padded(row, _PAGE // 128, paged) / 128 * many
        fixed = 0.0
        running = int(self.flags.get("max-running-requests") or self.special["requests"])
        running = max(1, running // (self.spread.dp if self.spread.dp_attention else 1))
        if versions.within(version, "<0.5.14"):
            token += self._sliding_ratio() * long_ring / window * 8 * width * many
        else:
            rows = (running + 1) * long_ring + long_ring + 1
            fixed = float(-(-rows // 128) * 128 * 2 * width * 4 * many)
        draft = 1 + (1 / layers if speculative else 0)
        return Cache(token * draft / self.spread.pp, fixed / self.spread.pp, slots=running)


_STATE_SIZES = ("heads", "head_dim", "size", "groups", "conv_kernel")
_STATE_TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

_PAGE = 256
"""Tokens on a page of DeepSeek-V4's cache."""


def _padded(row: int, rows: int, paged: bool) -> float:
    """Return the bytes of a row of DeepSeek-V4's cache; pages are padded from 0.5.21 on."""
    return -(-rows * row // 576) * 576 / rows if paged else float(row)


def _head_width(model: Document) -> int | None:
    if model["head_dim"]:
        return int(model["head_dim"])
    return model["hidden_size"] // model["heads"] if model["heads"] else None


@cache
def _rules() -> Document:
    return tables.read(__file__, "memory.yaml")
