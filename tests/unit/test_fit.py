"""Memory: what public servers logged when they started, and what can't be divided."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bringup.plan.fit import Fit, tokens_on_cpu
from bringup.plan.spread import Spread

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
    layers_compressed_4=21,
    layers_compressed_128=20,
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

BOOTS = yaml.safe_load(Path(__file__).with_name("fixtures").joinpath("boots.yaml").read_text())
ALL_BOOTS = {**BOOTS["public"], **BOOTS["measured"]}
SERVED = [name for name, boot in ALL_BOOTS.items() if "tokens" in boot]
REFUSED = [name for name, boot in ALL_BOOTS.items() if "least_fraction" in boot]


def fit_of(name, **flags):
    boot = ALL_BOOTS[name]
    weights = boot["weights"]
    parts = weights if isinstance(weights, dict) else None
    format = format_of(
        boot["architecture"],
        None if parts else weights,
        observed={part: {"bytes": size} for part, size in parts.items()} if parts else None,
        **boot["model"],
    )
    return Fit(format, {**boot["flags"], **flags}, boot["memory_gib"])


def test_the_figures_of_boots_are_enough_and_have_sources():
    assert len(SERVED) >= 5
    assert all(boot["source"].strip() for boot in ALL_BOOTS.values())


@pytest.mark.parametrize("name", SERVED)
def test_the_kv_cache_of_real_servers_within_a_tenth(name):
    assert fit_of(name).kv_tokens == pytest.approx(ALL_BOOTS[name]["tokens"], rel=0.10)


@pytest.mark.parametrize("name", REFUSED)
def test_servers_that_found_no_room_for_a_cache(name):
    least = ALL_BOOTS[name]["least_fraction"]
    (objection,) = fit_of(name).objections()
    assert objection["class"] == "does-not-fit"
    assert list(fit_of(name, **{"mem-fraction-static": least + 0.02}).objections()) == []
    assert fit_of(name).weights_gib / fit_of(name).usable_gib == pytest.approx(least, rel=0.01)


def test_the_states_of_a_real_server():
    """82 slots of 7.29 + 0.13 GiB, and one more that pads (ktransformers#1870)."""
    boot = ALL_BOOTS["qwen3.5-397b-2x4090"]
    cache = fit_of("qwen3.5-397b-2x4090").cache
    assert cache.state_bytes * (boot["state_slots"] + 1) / GIB == pytest.approx(
        boot["state_gib"], rel=0.01
    )


def test_the_default_of_mem_fraction_static():
    assert round(Fit(QWEN3_30B_FP8, {}, 79.6).fraction, 2) == 0.83
    # "I found the value to be 0.828 for H100 with Qwen3 32B" (sgl-project/sglang#29092)
    assert Fit(QWEN3_32B, {}, 79.6).fraction == pytest.approx(0.828, abs=0.01)


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
    each = Fit(format, flags, 80.0, version).cache.token_bytes
    assert each == pytest.approx(expected, rel=0.001)


def test_a_declared_kv_cache_counts_unless_asked_otherwise():
    fp8 = QWEN3_14B | {"kv_cache": {"format": "fp8", "said_by": "config.json"}}
    assert Fit(fp8, {}, 24.0).cache.token_bytes == 81_920
    assert Fit(fp8, {"kv-cache-dtype": "bf16"}, 24.0).cache.token_bytes == 163_840


# Qwen3.6-35B-A3B: 10 layers of attention in 40.
QWEN36_35B = format_of(
    "Qwen3_5MoeForConditionalGeneration",
    22_000_000_000,
    layers=40,
    attention_layers=10,
    linear_attention_layers=30,
    heads=16,
    kv_heads=2,
    head_dim=256,
    experts=256,
    moe_intermediate_size=512,
    state_heads=32,
    state_head_dim=128,
    state_size=128,
    state_groups=16,
    state_conv_kernel=4,
    state_dtype="fp32",
)
# 32 heads × 128 × 128 of 4 bytes, and 3 columns of (32 × 128 + 2 × 16 × 128) of 2 bytes, 30 layers
QWEN36_STATE = 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)


def test_only_attention_keeps_tokens_in_a_model_with_recurrent_states():
    fit = Fit(QWEN36_35B, {}, 80.0)
    assert fit.cache.token_bytes == 2 * 2 * 256 * 10 * 2
    assert fit.cache.state_bytes == QWEN36_STATE
    # the states get 0.9 times what the tokens get
    assert fit.kv_tokens == pytest.approx(fit.kv_gib * GIB / 1.9 / fit.cache.token_bytes, rel=1e-3)
    slots = fit.kv_gib * GIB * 0.9 / 1.9 / QWEN36_STATE - 1
    assert fit.requests == int(slots) // 5


@pytest.mark.parametrize(
    ("flags", "slots", "requests"),
    [
        # "SGLang reports max_running_requests=8 (40 / 5)": jpezzulli/sglang-rtxpro6000#5
        ({"max-mamba-cache-size": 40}, 40, 8),
        ({"max-mamba-cache-size": 40, "mamba-radix-cache-strategy": "no_buffer"}, 40, 13),
        ({"disable-radix-cache": True, "max-running-requests": 32}, 32, 32),
    ],
)
def test_states_for_so_many_requests_are_taken_first(flags, slots, requests):
    fit = Fit(QWEN36_35B, flags, 80.0)
    left = fit.kv_gib * GIB - (slots + 1) * QWEN36_STATE
    assert fit.kv_tokens == pytest.approx(left / fit.cache.token_bytes, abs=1)
    assert fit.requests == requests


def test_states_of_a_size_that_config_json_does_not_tell_still_share_the_memory():
    unknown = QWEN36_35B | {"model": {**QWEN36_35B["model"], "state_heads": None}}
    fit = Fit(unknown, {}, 80.0)
    assert fit.kv_tokens == Fit(QWEN36_35B, {}, 80.0).kv_tokens
    assert fit.requests is None


def test_an_attention_that_config_json_does_not_tell_is_not_guessed():
    unknown = QWEN3_14B | {"architecture": "MiniMaxM3ForCausalLM"}
    fit = Fit(unknown, {}, 80.0)
    assert fit.kv_tokens is None
    assert fit.document()["kv_bytes_per_token"] is None
    assert fit.kv_gib == pytest.approx(80 * 0.98 * fit.fraction - 27.5, abs=0.6)
    unlisted = DSV4_FLASH | {"model": {**DSV4_FLASH["model"], "layers_compressed_4": None}}
    assert Fit(unlisted, {"tp-size": 4}, 80.0).kv_tokens is None


def test_what_deepseek_v4_keeps_for_requests_is_taken_first():
    """(11.89 - 0.11) GiB / 7705.45 bytes = 1641472 tokens, for 8 requests (a public log)."""
    cache = Fit(DSV4_FLASH, {"tp-size": 4, "max-running-requests": 8}, 95.6, "0.5.16").cache
    assert cache.fixed_bytes / GIB == pytest.approx(0.11, abs=0.005)
    assert cache.tokens(11.89 * GIB) == pytest.approx(1_641_472, rel=0.001)
    assert cache.requests(11.89 * GIB) == 8
    assert Fit(DSV4_FLASH, {"tp-size": 4}, 95.6, "0.5.16").requests == 256


def test_deepseek_v4_pro_by_its_own_layers():
    """bytes_per_full_token=13735.04 with a window of 0.15 times the tokens (a public log)."""
    flags = {"tp-size": 8, "swa-full-tokens-ratio": 0.15}
    pro = fit_of("deepseek-v4-pro-8xh200").format
    cache = Fit(pro, flags, 140.4, "0.5.16").cache
    assert cache.token_bytes == pytest.approx(13_735.04, abs=0.01)


@pytest.mark.parametrize(
    ("gpu", "dtype", "each"),
    [
        ("sm90", None, 576 * 2),  # 16 bits by default
        ("sm100", None, 576),  # 8 bits by default, kept raw
        ("sm90", "fp8_e4m3", 512 + 16 + 128),  # scales, and the rotary part in 16 bits
        ("sm100", "bfloat16", 576 * 2),
    ],
)
def test_sparse_attention_keeps_what_its_kernels_want(gpu, dtype, each):
    v32 = DEEPSEEK_V3 | {"model": {**DEEPSEEK_V3["model"], "index_head_dim": 128}}
    flags = {"tp-size": 8, **({"kv-cache-dtype": dtype} if dtype else {})}
    cache = Fit(v32, flags, 140.0, gpu=gpu).cache
    assert cache.token_bytes == 61 * (each + 128 + 4)


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
        (
            QWEN3_14B,
            {"tp-size": 8, "dp-size": 3, "enable-dp-attention": True},
            "8 GPUs of tp-size don't divide into 3",
        ),
        (QWEN3_14B, {"pp-size": 64}, "40 layers don't make 64 stages"),
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
