"""Memory: what public servers logged when they started, and what can't be divided."""

from __future__ import annotations

import pytest

from bringup.plan.fit import Fit, Spread, tokens_on_cpu

GIB = 1 << 30

NUMBERS = dict.fromkeys(
    (
        *("layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size"),
        *("experts", "moe_intermediate_size", "sliding_window", "kv_lora_rank", "q_lora_rank"),
        *("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim"),
    )
)


def format_of(architecture, weights_bytes=None, *, classes=None, kv_cache=None, observed=None, **m):
    dense = {"dense_mlp": {"format": "bf16", "group_size": None}}
    return {
        "architecture": architecture,
        "model": {**NUMBERS, "dtype": "bf16", **m},
        "observed": observed,
        "classes": classes or dense,
        "kv_cache": kv_cache,
        "weights_bytes": weights_bytes,
    }


QWEN3_14B = format_of(
    "Qwen3ForCausalLM", 29_536_614_400, layers=40, heads=40, kv_heads=8, head_dim=128
)
QWQ_32B = format_of(
    "Qwen2ForCausalLM", 65_527_752_704, layers=64, heads=40, kv_heads=8, head_dim=128
)
QWEN3_32B = format_of(
    "Qwen3ForCausalLM", 65_524_246_528, layers=64, heads=64, kv_heads=8, head_dim=128
)
QWEN3_235B_FP8 = format_of(
    "Qwen3MoeForCausalLM",
    236_400_000_000,
    classes={"experts": {"format": "fp8-block", "group_size": [128, 128]}},
    layers=94,
    heads=64,
    kv_heads=4,
    head_dim=128,
    experts=128,
    moe_intermediate_size=1536,
)
QWEN3_30B_FP8 = format_of(
    "Qwen3MoeForCausalLM",
    31_200_000_000,
    classes={"experts": {"format": "fp8-block", "group_size": [128, 128]}},
    layers=48,
    heads=32,
    kv_heads=4,
    head_dim=128,
    experts=128,
    moe_intermediate_size=768,
)
DEEPSEEK_V3 = format_of(
    "DeepseekV3ForCausalLM",
    layers=61,
    hidden_size=7168,
    heads=128,
    kv_heads=128,
    kv_lora_rank=512,
    q_lora_rank=1536,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
)
DSV4_FLASH = format_of(
    "DeepseekV4ForCausalLM",
    168_200_000_000,
    classes={"experts": {"format": "nvfp4", "group_size": 16}},
    layers=43,
    hidden_size=4096,
    heads=64,
    kv_heads=1,
    head_dim=512,
    q_lora_rank=1024,
    qk_rope_head_dim=64,
    index_head_dim=128,
    sliding_window=128,
    experts=256,
    moe_intermediate_size=2048,
)
GPT_OSS_20B = format_of(
    "GptOssForCausalLM",
    layers=24,
    heads=64,
    kv_heads=8,
    head_dim=64,
    sliding_window=128,
    experts=32,
)

# Logs of servers that others started: what ran where, and `max_total_num_tokens`.
PUBLIC_BOOTS = [
    # Service notes of 2026-06-14, SGLang at ebaf86d, four RTX 4090: 7.08 GiB of weights a GPU.
    (QWEN3_14B, {"tp-size": 4, "mem-fraction-static": 0.80}, 24.0, 298_447),
    # didier-durand/llms-in-clouds, SGLang 0.4.3.post4, EC2 g6.12xlarge (four L4): 15.54 GiB.
    (QWQ_32B, {"tp-size": 4, "mem-fraction-static": 0.85}, 22.5, 46_611),
    # Qwen3-32B prefill study, SGLang 0.5.13.post1, four RTX 5090: 15.50 GiB.
    (QWEN3_32B, {"tp-size": 4, "mem-fraction-static": 0.88}, 31.8, 187_069),
    # vllm-project/vllm#21348, SGLang of July 2025, four H100.
    (QWEN3_235B_FP8, {"tp-size": 4, "mem-fraction-static": 0.93}, 79.6, 367_404),
    # Profiling log of 2026-08-27, one H100, mem-fraction-static left to the default: 29.15 GiB.
    (QWEN3_30B_FP8, {}, 79.6, 392_920),
]


@pytest.mark.parametrize(("format", "flags", "memory_gib", "tokens"), PUBLIC_BOOTS)
def test_the_kv_cache_of_public_servers_within_a_tenth(format, flags, memory_gib, tokens):
    assert Fit(format, flags, memory_gib).kv_tokens == pytest.approx(tokens, rel=0.10)


def test_the_default_of_mem_fraction_static():
    assert round(Fit(QWEN3_30B_FP8, {}, 79.6).fraction, 2) == 0.83


# Bytes of one token, from logs and by hand from SGLang's pool configurators.
@pytest.mark.parametrize(
    ("format", "flags", "version", "expected"),
    [
        # 2 tensors × 2 heads a GPU × 128 × 40 layers × 2 bytes
        (QWEN3_14B, {"tp-size": 4}, None, 40_960),
        # more GPUs than KV heads: one head a GPU
        (QWEN3_235B_FP8, {"tp-size": 8}, None, 2 * 128 * 94 * 2),
        # half the layers by pipeline, one byte by the KV cache's type
        (QWEN3_14B, {"pp-size": 2, "kv-cache-dtype": "fp8_e4m3"}, None, 2 * 8 * 128 * 20),
        # "#tokens: 524288, KV size: 17.16 GB" of an FP8 cache
        (DEEPSEEK_V3, {"tp-size": 8, "kv-cache-dtype": "fp8_e4m3"}, None, 17.16 * GIB / 524_288),
        # "bytes_per_full_token=7705.45"
        (DSV4_FLASH, {"tp-size": 4}, "0.5.16", 7705.45),
        # the states of 20 layers grow with the tokens too: 0.1 × 8 × 512 bytes each
        (DSV4_FLASH, {"tp-size": 4}, "0.5.13.post1", 7705.45 + 20 * 0.1 * 8 * 512),
        # 12 full layers, and 12 sliding ones of 0.8 the tokens
        (GPT_OSS_20B, {}, None, 2 * 8 * 64 * 2 * (12 + 12 * 0.8)),
    ],
)
def test_the_kv_bytes_of_a_token(format, flags, version, expected):
    each = Fit(format, flags, 80.0, version).kv_bytes_per_token
    assert each == pytest.approx(expected, rel=0.001)


def test_a_declared_kv_cache_counts_unless_asked_otherwise():
    fp8 = QWEN3_14B | {"kv_cache": {"format": "fp8", "said_by": "config.json"}}
    assert Fit(fp8, {}, 24.0).kv_bytes_per_token == 81_920
    assert Fit(fp8, {"kv-cache-dtype": "bf16"}, 24.0).kv_bytes_per_token == 163_840


def test_an_attention_that_config_json_does_not_tell_is_not_guessed():
    hybrid = QWEN3_14B | {"model": {**QWEN3_14B["model"], "mamba_layers": 30}}
    fit = Fit(hybrid, {}, 80.0)
    assert fit.kv_tokens is None
    assert fit.document()["kv_bytes_per_token"] is None
    assert fit.kv_gib == pytest.approx(80 * 0.98 * fit.fraction - 27.5, abs=0.6)


def test_max_total_tokens_caps_the_cache():
    assert Fit(QWEN3_14B, {"max-total-tokens": 8192}, 80.0).kv_tokens == 8192


def observed(**gib):
    return {name: {"bytes": int(size * GIB)} for name, size in gib.items()}


def test_weights_are_divided_by_their_class():
    parts = observed(experts=80, attention=8, embeddings=2, lm_head=2, draft=4, other=1)
    fit = Fit(QWEN3_14B | {"observed": parts}, {"tp-size": 4, "pp-size": 2}, 80.0)
    assert fit.weights == pytest.approx(
        {"experts": 10.0, "attention": 1.0, "embeddings": 0.5, "lm_head": 0.5, "other": 1.0}
    )


def test_draft_layers_are_loaded_for_speculation_only():
    parts = observed(experts=80, draft=4)
    flags = {"tp-size": 4, "speculative-algorithm": "EAGLE"}
    assert Fit(QWEN3_14B | {"observed": parts}, flags, 80.0).weights["draft"] == 1.0


def test_data_parallel_attention_keeps_more_of_it_on_each_gpu():
    parts = observed(attention=8)
    flags = {"tp-size": 8, "dp-size": 4, "enable-dp-attention": True}
    assert Fit(QWEN3_14B | {"observed": parts}, flags, 80.0).weights["attention"] == 4.0


def test_latent_attention_stands_partly_whole_on_each_gpu():
    # down 7168 × (1536 + 512), up 1536 × 128 × 128, out 128 × 128 × 7168
    down, up, out = 7168 * 2048, 1536 * 128 * 128, 128 * 128 * 7168
    share = down / (down + up + out)
    weights = Fit(DEEPSEEK_V3 | {"observed": observed(attention=8)}, {"tp-size": 8}, 80.0).weights
    assert weights["attention"] == pytest.approx(8 * share + (1 - share))


def test_unknown_sizes_stay_unknown():
    fit = Fit(DEEPSEEK_V3, {"tp-size": 8}, 80.0)
    assert (fit.weights_gib, fit.kv_gib, fit.kv_tokens) == (None, None, None)
    assert list(fit.objections()) == []
    assert list(fit.warnings()) == []


@pytest.mark.parametrize(
    ("format", "flags", "told"),
    [
        (QWEN3_14B, {"tp-size": 3}, "40 attention heads don't divide into 3"),
        (QWEN3_14B, {"tp-size": 5}, "8 KV heads don't divide into 5"),
        (
            QWEN3_30B_FP8,
            {"tp-size": 4},
            "moe_intermediate_size 768 over 4 GPUs is 192, which scales for 128 weights each",
        ),
        (DSV4_FLASH, {"tp-size": 8, "ep-size": 3}, "256 experts don't divide into 3"),
        (DSV4_FLASH, {"tp-size": 4, "ep-size": 8}, "4 GPUs of tp-size don't divide into 8"),
    ],
)
def test_what_does_not_divide(format, flags, told):
    messages = [each["message"] for each in Fit(format, flags, 180.0).objections()]
    assert any(told in message for message in messages)


@pytest.mark.parametrize(
    ("format", "flags"),
    [
        (QWEN3_30B_FP8, {"tp-size": 2}),
        (QWEN3_30B_FP8, {"tp-size": 4, "ep-size": 4}),
        (QWEN3_235B_FP8, {"tp-size": 4}),
        (DSV4_FLASH, {"tp-size": 4}),
        (QWEN3_14B, {"tp-size": 8, "dp-size": 8, "enable-dp-attention": True}),
    ],
)
def test_what_divides(format, flags):
    assert list(Fit(format, flags, 180.0).objections()) == []


def test_weights_that_do_not_fit_name_the_knob():
    # 168.2 GB over four GPUs of 48 GiB
    (objection,) = Fit(DSV4_FLASH, {"tp-size": 4, "mem-fraction-static": 0.7}, 48.0).objections()
    assert objection["class"] == "does-not-fit"
    assert objection["hint"].startswith("mem-fraction-static from 0.94")
    (objection,) = Fit(DSV4_FLASH, {"tp-size": 1}, 48.0).objections()
    assert objection["hint"] == "a larger tp-size, or GPUs with more memory"


def test_little_left_for_graphs_is_a_warning():
    fit = Fit(QWEN3_32B, {"tp-size": 4, "mem-fraction-static": 0.97}, 79.6)
    (warning,) = fit.warnings()
    assert (
        "lower it if the server runs out of memory while it captures graphs" in (warning["message"])
    )


@pytest.mark.parametrize(
    ("flags", "memory_gib", "largest"),
    [
        ({}, 79.6, 256),
        ({"tp-size": 4}, 79.6, 512),
        ({}, 31.8, 24),
        ({"cuda-graph-max-bs-decode": 32}, 79.6, 32),
        ({"cuda-graph-max-bs": 32}, 79.6, 32),
        ({"cuda-graph-bs-decode": [1, 2, 16]}, 79.6, 16),
        ({"disable-cuda-graph": True}, 79.6, 0),
    ],
)
def test_the_largest_batch_with_a_graph(flags, memory_gib, largest):
    assert Fit(QWEN3_32B, flags, memory_gib).graph_max_bs == largest


def test_sizes_of_groups():
    flags = {"tp-size": 4, "pp-size": 2, "dp-size": 2}
    spread = Spread.of(flags)
    assert (spread.gpus, spread.attention_tp, str(spread)) == (16, 4, "tp 4, pp 2, dp 2")


def test_a_cpu_host_gets_a_bounded_cache():
    small = format_of("Qwen3MoeForCausalLM", layers=4, heads=4, kv_heads=2, head_dim=64)
    assert tokens_on_cpu(small, 24.0) == 65_536
    # one sixteenth of 16 GiB, 163840 bytes a token
    assert tokens_on_cpu(QWEN3_14B, 16.0) == 6 * 1024
    assert tokens_on_cpu(QWEN3_14B | {"architecture": "MiniMaxM3ForCausalLM"}, 16.0) is None
