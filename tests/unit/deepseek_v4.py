"""DeepSeek-V4-Flash at full shape and count, by the names its checkpoints have.

Shapes follow from the public config.json (hidden 4096, experts 2048 wide, 64 heads of 512); names
and dtypes from the checkpoints' headers and the loader of SGLang 0.5.23 (models/deepseek_v4.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tensor_files import Tensors, write, write_folder

Experts = Literal["nvfp4", "mxfp4", "fp8"]

HIDDEN, WIDE, LAYERS, EXPERTS = 4096, 2048, 43, 256
LINEAR = {
    "wq_a": [1024, HIDDEN],
    "wq_b": [32768, 1024],
    "wkv": [512, HIDDEN],
    "wo_a": [8192, HIDDEN],
    "wo_b": [HIDDEN, 8192],
}
MLP = {"w1": [WIDE, HIDDEN], "w2": [HIDDEN, WIDE], "w3": [WIDE, HIDDEN]}

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": HIDDEN,
    "moe_intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_nextn_predict_layers": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "swiglu_limit": 10.0,
    "torch_dtype": "bfloat16",
}
FP8: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}
NVFP4: dict[str, Any] = {
    **FP8,
    "config_groups": {
        "group_0": {
            "input_activations": {
                "dynamic": False,
                "group_size": 16,
                "num_bits": 4,
                "type": "float",
            },
            "targets": ["Linear"],
            "weights": {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"},
        }
    },
    "group_size": 16,
    "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
    "kv_cache_quant_algo": None,
    "moe_quant_algo": "NVFP4",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        f"layers.{layer}.ffn.experts": {"group_size": 16, "quant_algo": "NVFP4"}
        for layer in range(LAYERS)
    },
}


def fp8_block(name: str, shape: list[int]) -> Iterator[tuple[str, tuple[str, list[int]]]]:
    yield f"{name}.weight", ("F8_E4M3", shape)
    yield f"{name}.scale", ("F8_E8M0", [-(-side // 128) for side in shape])


def mxfp4(name: str, shape: list[int]) -> Iterator[tuple[str, tuple[str, list[int]]]]:
    yield f"{name}.weight", ("I8", [shape[0], shape[1] // 2])
    yield f"{name}.scale", ("F8_E8M0", [shape[0], shape[1] // 32])


def nvfp4(name: str, shape: list[int]) -> Iterator[tuple[str, tuple[str, list[int]]]]:
    yield f"{name}.weight", ("U8", [shape[0], shape[1] // 2])
    yield f"{name}.weight_scale", ("F8_E4M3", [shape[0], shape[1] // 16])
    yield f"{name}.weight_scale_2", ("F32", [])
    yield f"{name}.input_scale", ("F32", [])


FORMS = {"nvfp4": nvfp4, "mxfp4": mxfp4, "fp8": fp8_block}


def layer(below: str, form: Experts, experts: int) -> dict[str, tuple[str, list[int]]]:
    found: dict[str, tuple[str, list[int]]] = {
        f"{below}.attn_norm.weight": ("BF16", [HIDDEN]),
        f"{below}.ffn_norm.weight": ("BF16", [HIDDEN]),
        f"{below}.ffn.gate.weight": ("BF16", [EXPERTS, HIDDEN]),
        f"{below}.attn.q_norm.weight": ("BF16", [1024]),
        f"{below}.attn.compressor.wkv.weight": ("BF16", [512, HIDDEN]),
    }
    for name, shape in LINEAR.items():
        found.update(fp8_block(f"{below}.attn.{name}", shape))
    for name, shape in MLP.items():
        found.update(fp8_block(f"{below}.ffn.shared_experts.{name}", shape))
        for expert in range(experts):
            found.update(FORMS[form](f"{below}.ffn.experts.{expert}.{name}", shape))
    return found


def shards(experts: Experts, *, layers: int = LAYERS, each: int = EXPERTS) -> Iterator[Tensors]:
    """Yield the tensors of each file: one for each layer, the draft layer, and the two ends."""
    yield {"embed.weight": ("BF16", [129280, HIDDEN])}
    for number in range(layers):
        yield layer(f"layers.{number}", experts, each)
    draft: Experts = "fp8" if experts == "fp8" else "mxfp4"
    yield layer("mtp.0", draft, each)
    yield {"head.weight": ("BF16", [129280, HIDDEN]), "norm.weight": ("BF16", [HIDDEN])}


def write_checkpoint(folder: Path, experts: Experts, config: dict[str, Any], **more: Any) -> Path:
    """Write a checkpoint whose data are holes; ``more`` goes to ``shards``."""
    made = write_folder(folder, config, {})
    for number, tensors in enumerate(shards(experts, **more), 1):
        write(made / f"model-{number:05}-of-00046.safetensors", tensors)
    return made
