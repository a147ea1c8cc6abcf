"""Small configs in the forms that published checkpoints have, and what their experts are.

The quantization sections are spelt as in the checkpoints named beside them; the models are cut down
to a few small layers.  No weights belong to them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAYERS = 2
EXPERTS = 4

QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "intermediate_size": 256,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}

DEEPSEEK_V4: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "expert_dtype": "fp4",
    "compress_ratios": [0, 4, 0],
    "compress_rope_theta": 160000,
    "hc_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 512,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "max_position_embeddings": 1048576,
    "moe_intermediate_size": 2048,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 2,
    "num_hash_layers": 1,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 16,
        "original_max_position_embeddings": 65536, "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 128,
    "swiglu_limit": 10.0,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "vocab_size": 129280,
}  # fmt: skip

GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": LAYERS,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "experts_per_token": 2,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
}

FP8_BLOCK: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}

FP4_GROUP = {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"}


def experts(algo: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one entry for each layer's module ``name``."""
    return {name.format(layer): algo for layer in range(LAYERS)}


MIXED_LAYERS = {
    **experts({"quant_algo": "FP8"}, "model.layers.{}.self_attn.q_proj"),
    **experts({"quant_algo": "W4A16_NVFP4", "group_size": 16}, "model.layers.{}.mlp.experts"),
}


def compressed(format_: str, weights: dict[str, Any], inputs: Any = None) -> dict[str, Any]:
    """Return a compressed-tensors section whose one group is every linear layer."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "config_groups": {"group_0": {**group, "format": format_}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp\\.gate$"],
        "quantization_status": "compressed",
    }


@dataclass(frozen=True)
class Case:
    """A checkpoint's small files, and the format of its experts."""

    experts: str
    model: dict[str, Any]
    quantization: dict[str, Any] | None = None
    files: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the files to a new folder."""
        folder.mkdir(parents=True)
        section = {"quantization_config": self.quantization} if self.quantization else {}
        whole = {"config.json": {**self.model, **section}, **self.files}
        for name, content in whole.items():
            (folder / name).write_text(json.dumps(content))
        return folder


CASES: dict[str, Case] = {
    "bf16": Case("bf16", QWEN3_MOE),
    # Qwen/Qwen3-30B-A3B-FP8
    "fp8-block": Case(
        "fp8-block",
        QWEN3_MOE,
        {**FP8_BLOCK, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]},
    ),
    # Qwen3-32B-FP8-Static: ModelOpt without quant_method
    "fp8-tensor": Case(
        "fp8-tensor",
        QWEN3_MOE,
        {
            "config_groups": {
                "group_0": {
                    "input_activations": {"dynamic": False, "num_bits": 8, "type": "float"},
                    "weights": {"dynamic": False, "num_bits": 8, "type": "float"},
                }
            },
            "ignore": ["lm_head"],
            "quant_algo": "FP8",
            "kv_cache_scheme": "FP8",
            "producer": {"name": "modelopt", "version": "0.31.0"},
        },
    ),
    # nvidia/Kimi-K2.6-NVFP4: in config.json
    "nvfp4": Case(
        "nvfp4",
        QWEN3_MOE,
        {
            "config_groups": {
                "group_0": {
                    "input_activations": FP4_GROUP,
                    "weights": FP4_GROUP,
                    "targets": ["Linear"],
                }
            },
            "ignore": ["lm_head", "model.layers.0.self_attn*"],
            "quant_algo": "NVFP4",
            "producer": {"name": "modelopt", "version": "0.41.0"},
            "quant_method": "modelopt",
        },
    ),
    # nvidia/Qwen3-235B-A22B-NVFP4: in hf_quant_config.json only
    "nvfp4-beside": Case(
        "nvfp4",
        QWEN3_MOE,
        files={
            "hf_quant_config.json": {
                "producer": {"name": "modelopt", "version": "0.33.0"},
                "quantization": {
                    "quant_algo": "NVFP4",
                    "kv_cache_quant_algo": "FP8",
                    "group_size": 16,
                    "exclude_modules": ["lm_head", "model.layers.0.mlp.gate"],
                },
            }
        },
    ),
    # nvidia/Qwen3.6-35B-A3B-NVFP4: FP8 attention, W4A16 experts, in both files
    "mixed": Case(
        "w4a16-nvfp4",
        QWEN3_MOE,
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "producer": {"name": "modelopt", "version": "0.37.0"},
            "ignore": ["lm_head"],
            "quantized_layers": MIXED_LAYERS,
        },
        {
            "hf_quant_config.json": {
                "producer": {"name": "modelopt", "version": "0.37.0"},
                "quantization": {
                    "quant_algo": "MIXED_PRECISION",
                    "kv_cache_quant_algo": "FP8",
                    "quantized_layers": MIXED_LAYERS,
                    "exclude_modules": ["lm_head"],
                },
            }
        },
    ),
    # Barrrrry/DeepSeek-R1-W4AFP8: MIXED_PRECISION and nothing else
    "w4afp8": Case(
        "w4afp8",
        QWEN3_MOE,
        files={
            "hf_quant_config.json": {
                "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}
            }
        },
    ),
    # moonshotai/Kimi-K2.5
    "int4": Case(
        "int4-group",
        QWEN3_MOE,
        compressed(
            "pack-quantized",
            {
                "num_bits": 4,
                "type": "int",
                "group_size": 32,
                "strategy": "group",
                "symmetric": True,
                "dynamic": False,
            },
        ),
    ),
    # RedHatAI's NVFP4 exports
    "nvfp4-compressed": Case(
        "nvfp4",
        QWEN3_MOE,
        compressed(
            "nvfp4-pack-quantized",
            {
                "num_bits": 4,
                "type": "float",
                "strategy": "tensor_group",
                "group_size": 16,
                "symmetric": True,
                "dynamic": False,
            },
            {
                "num_bits": 4,
                "type": "float",
                "strategy": "tensor_group",
                "group_size": 16,
                "symmetric": True,
                "dynamic": "local",
            },
        ),
    ),
    "awq": Case(
        "awq",
        QWEN3_MOE,
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 128,
            "version": "gemm",
            "zero_point": True,
            "modules_to_not_convert": None,
        },
    ),
    "gptq": Case(
        "gptq",
        QWEN3_MOE,
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    ),
    # openai/gpt-oss-20b
    "mxfp4": Case(
        "mxfp4",
        GPT_OSS,
        {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    ),
    # deepseek-ai/DeepSeek-V4-Flash
    "deepseek-v4-mxfp4": Case("mxfp4", DEEPSEEK_V4, {**FP8_BLOCK, "scale_fmt": "ue8m0"}),
    # nvidia/DeepSeek-V4-Flash-NVFP4
    "deepseek-v4-nvfp4": Case(
        "nvfp4",
        DEEPSEEK_V4,
        {
            **FP8_BLOCK,
            "scale_fmt": "ue8m0",
            "config_groups": {
                "group_0": {
                    "input_activations": FP4_GROUP,
                    "weights": FP4_GROUP,
                    "targets": ["Linear"],
                }
            },
            "group_size": 16,
            "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
            "kv_cache_quant_algo": None,
            "moe_quant_algo": "NVFP4",
            "quant_algo": "MIXED_PRECISION",
            "producer": {"name": "modelopt", "version": "dsv4-nvfp4-experts"},
            "quantized_layers": experts(
                {"quant_algo": "NVFP4", "group_size": 16}, "layers.{}.ffn.experts"
            ),
        },
    ),
}
