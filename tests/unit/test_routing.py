"""The routing table: each known combination, what a build takes by itself, the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from bringup import routing
from bringup.routing import versions
from bringup.routing.__main__ import main

TABLE = yaml.safe_load(Path(routing.__file__).with_name("table.yaml").read_text())
PARSERS = sorted(Path(__file__).with_name("parsers").glob("*.json"))

DSV4 = "DeepseekV4ForCausalLM"
GPT_OSS = "GptOssForCausalLM"
QWEN = "Qwen3MoeForCausalLM"
QWEN36 = "Qwen3_5MoeForConditionalGeneration"
LLAMA = "LlamaForCausalLM"
K3 = "KimiK3ForConditionalGeneration"
V3 = "DeepseekV3ForCausalLM"
V32 = "DeepseekV32ForCausalLM"
GLM = "GlmMoeDsaForCausalLM"
JUNE = "0.5.13.post1"


def verdict(format, gpu, version, backend, *, model=None, module="experts", patches=()):
    ranked = routing.rank(format, module, model, gpu, version, patches=patches)
    return next((row["verdict"] for row in ranked if row["backend"] == backend), None)


def own_choice(format, gpu, version, *, model=None, module="experts", patches=()):
    row = routing.automatic(format, module, model, gpu, version, patches=patches)
    return row["backend"] if row else None


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: row["id"])
def test_each_row_can_be_read(row):
    assert row["verdict"] in routing.VERDICTS
    assert row["module"] in (*routing.MODULES, "any")
    flags = {name for each in TABLE["flags"] for name in names_of(each)}
    assert set(row.get("for", [])) <= flags
    if "attention" in row["module"]:
        assert set(row["formats"]) <= {"bf16", "fp8", "nvfp4"}
    assert row["reason"].strip()
    assert row["source"]
    versions.within(versions.parse("0.5.23"), row.get("sglang"))
    assert {row.get("has"), row.get("lacks")} <= {None, *TABLE["features"]}
    assert all(name in TABLE["groups"] or name in routing.architectures() for name in row["gpus"])


def test_rows_are_told_apart():
    ids = [row["id"] for row in TABLE["rows"]]
    assert len(ids) == len(set(ids))


def names_of(row):
    """The arguments of a row of `flags`, and what 0.5.12 called them."""
    names = [row["flag"], *row.get("also", [])]
    return [*names, *(name.replace("dsa-", "nsa-") for name in names)]


def test_every_backend_of_the_table_is_one_that_some_release_offers():
    offered = {"auto", "*"}
    for path in PARSERS:
        choices = json.loads(path.read_text())["choices"]
        for row in TABLE["flags"]:
            offered |= {name for flag in names_of(row) for name in choices.get(flag) or ()}
    named = {name for row in TABLE["rows"] for name in row["backends"]}
    assert named <= offered | {row["backend"] for row in TABLE["automatic"]}
    assert {row["backend"] for row in TABLE["automatic"]} <= offered


# The matrix of formats and architectures, as it was read in the wheels and seen in reports.
MATRIX = [
    # FP8 blocks, linear layers
    ("fp8-block", "dense", None, "sm90", "0.5.16", "cutlass", "refuses"),
    ("fp8-block", "dense", None, "sm100", "0.5.23", "cutlass", "refuses"),
    ("fp8-block", "dense", None, "sm90", "0.5.23", "deep_gemm", "works"),
    ("fp8-block", "dense", None, "sm100", "0.5.23", "flashinfer_trtllm", "works"),
    ("fp8-block", "dense", None, "sm120", "0.5.23", "cutlass", "works"),
    ("fp8-block", "dense", None, "sm120", "0.5.23", "flashinfer_trtllm", "refuses"),
    ("fp8-block", "dense", None, "sm120", "0.5.23", "flashinfer_deepgemm", "refuses"),
    ("fp8-block", "dense", None, "sm120", "0.5.23", "deep_gemm", "starts-but-wrong"),
    # FP8 blocks, experts
    ("fp8-block", "experts", None, "sm90", "0.5.23", "deep_gemm", "works"),
    ("fp8-block", "experts", None, "sm90", "0.5.23", "triton", "works"),
    ("fp8-block", "experts", None, "sm100", "0.5.23", "flashinfer_trtllm", "works"),
    ("fp8-block", "experts", None, "sm120", "0.5.23", "triton", "recommended"),
    ("fp8-block", "experts", None, "sm120", "0.5.23", "deep_gemm", "starts-but-wrong"),
    ("fp8-block", "experts", None, "sm120", "0.5.23", "flashinfer_cutlass", "works"),
    ("fp8-block", "experts", None, "sm90", "0.5.23", "flashinfer_cutedsl", "works"),
    ("fp8-block", "experts", None, "sm120", "0.5.23", "cutlass", "unknown"),
    ("fp8-block", "experts", None, "sm89", "0.5.23", "cutlass", "refuses"),
    ("fp8-block", "experts", None, "sm100", "0.5.23", "deep_gemm", "works"),
    # NVFP4, linear layers
    ("nvfp4", "dense", None, "sm90", "0.5.23", "marlin", "works"),
    ("nvfp4", "dense", None, "sm100", "0.5.23", "flashinfer_cutedsl", "works"),
    ("nvfp4", "dense", None, "sm120", "0.5.23", "flashinfer_cutlass", "starts-but-wrong"),
    ("nvfp4", "dense", None, "sm120", "0.5.23", "flashinfer_cudnn", "recommended"),
    # NVFP4, experts
    ("nvfp4", "experts", QWEN, "sm90", "0.5.23", "marlin", "recommended"),
    ("nvfp4", "experts", QWEN, "sm80", "0.5.23", "marlin", "recommended"),
    ("nvfp4", "experts", QWEN, "sm90", "0.5.23", "flashinfer_cutlass", "refuses"),
    ("nvfp4", "experts", QWEN, "sm86", "0.5.23", "marlin", "recommended"),
    ("nvfp4", "experts", QWEN, "sm89", "0.5.23", "flashinfer_trtllm", "refuses"),
    ("nvfp4", "experts", QWEN, "sm90", "0.5.16", "flashinfer_cutedsl", "refuses"),
    ("nvfp4", "experts", QWEN, "sm100", "0.5.23", "flashinfer_trtllm", "recommended"),
    ("nvfp4", "experts", QWEN, "sm100", "0.5.23", "marlin", "works"),
    ("nvfp4", "experts", QWEN, "sm120", "0.5.23", "marlin", "recommended"),
    ("nvfp4", "experts", QWEN, "sm120", "0.5.23", "flashinfer_cutlass", "works"),
    ("nvfp4", "experts", QWEN, "sm120", "0.5.23", "flashinfer_trtllm", "refuses"),
    ("nvfp4", "experts", "MiniMaxM2ForCausalLM", "sm100", "0.5.12.post1", "flashinfer_trtllm",
     "starts-but-wrong"),
    # NVFP4 experts of DeepSeek-V4
    ("nvfp4", "experts", DSV4, "sm120", "0.5.23", "marlin", "recommended"),
    ("nvfp4", "experts", DSV4, "sm120", "0.5.23", "flashinfer_cutlass", "works"),
    ("nvfp4", "experts", DSV4, "sm120", "0.5.20", "flashinfer_cutlass", "starts-but-wrong"),
    ("nvfp4", "experts", DSV4, "sm120", "0.5.14", "flashinfer_cutlass", "starts-but-wrong"),
    ("nvfp4", "experts", DSV4, "sm120", "0.5.23", "flashinfer_trtllm_routed", "refuses"),
    ("nvfp4", "experts", DSV4, "sm100", "0.5.14", "flashinfer_trtllm_routed", "recommended"),
    ("nvfp4", "experts", DSV4, "sm90", "0.5.23", "marlin", "recommended"),
    ("nvfp4", "experts", DSV4, "sm90", "0.5.23", "flashinfer_trtllm_routed", "refuses"),
    ("nvfp4", "experts", DSV4, "sm120", JUNE, "marlin", "starts-but-wrong"),
    # MXFP4 experts of DeepSeek-V4
    ("mxfp4", "experts", DSV4, "sm90", "0.5.23", "flashinfer_mxfp4", "recommended"),
    ("mxfp4", "experts", DSV4, "sm100", "0.5.23", "flashinfer_mxfp4", "recommended"),
    ("mxfp4", "experts", DSV4, "sm100", "0.5.23", "marlin", "refuses"),
    ("mxfp4", "experts", DSV4, "sm120", "0.5.23", "flashinfer_mxfp4", "recommended"),
    ("mxfp4", "experts", DSV4, "sm120", "0.5.14", "flashinfer_mxfp4", "refuses"),
    ("mxfp4", "experts", DSV4, "sm120", "0.5.14", "marlin", "works"),
    ("mxfp4", "experts", DSV4, "sm120", JUNE, "marlin", "starts-but-slow"),
    ("mxfp4", "experts", DSV4, "sm120", "0.5.12.post1", "marlin", "refuses"),
    # MXFP4 of gpt-oss
    ("mxfp4", "experts", GPT_OSS, "sm90", "0.5.23", "triton_kernel", "recommended"),
    ("mxfp4", "experts", GPT_OSS, "sm100", "0.5.23", "flashinfer_mxfp4", "recommended"),
    ("mxfp4", "experts", GPT_OSS, "sm120", "0.5.23", "flashinfer_mxfp4", "recommended"),
    ("mxfp4", "experts", GPT_OSS, "sm120", JUNE, "flashinfer_mxfp4", "refuses"),
    ("mxfp4", "experts", GPT_OSS, "sm120", JUNE, "triton_kernel", "works"),
    ("mxfp4", "experts", GPT_OSS, "sm120", "0.5.16", "marlin", "works"),
    # MXFP8
    ("mxfp8", "experts", None, "sm90", "0.5.23", "triton", "refuses"),
    ("mxfp8", "experts", None, "sm100", "0.5.23", "flashinfer_trtllm", "recommended"),
    ("mxfp8", "experts", None, "sm120", "0.5.23", "flashinfer_trtllm", "refuses"),
    ("mxfp8", "experts", None, "sm120", "0.5.23", "cutlass", "works"),
    ("mxfp8", "experts", None, "sm100", "0.5.23", "marlin", "works"),
    ("mxfp8", "experts", None, "sm120", "0.5.23", "marlin", "refuses"),
    ("mxfp8", "dense", None, "sm90", "0.5.23", "deep_gemm", "works"),
    ("mxfp8", "dense", None, "sm100", "0.5.23", "flashinfer_cutedsl", "works"),
    ("mxfp8", "dense", None, "sm120", "0.5.23", "flashinfer_cutlass", "works"),
    # MXFP4 of compressed-tensors
    ("mxfp4", "experts", K3, "sm100", "0.5.23", "flashinfer_trtllm", "works"),
    ("mxfp4", "experts", K3, "sm90", "0.5.23", "humming", "works"),
    ("mxfp4", "experts", K3, "sm120", "0.5.23", "cutlass", "unknown"),
    ("mxfp4", "experts", K3, "sm120", "0.5.16", "auto", "refuses"),
    # INT4 and others
    ("int4-group", "experts", None, "sm90", "0.5.16", "marlin", "recommended"),
    ("int4-group", "experts", None, "sm120", "0.5.23", "marlin", "works"),
    ("int4-group", "experts", None, "sm120", "0.5.23", "flashinfer_trtllm", "refuses"),
    ("int4-group", "experts", None, "sm100", "0.5.23", "marlin", "works"),
    ("int4-group", "experts", None, "sm100", "0.5.23", "flashinfer_trtllm", "works"),
    ("awq", "experts", None, "sm120", "0.5.23", "auto", "works"),
    ("awq", "experts", None, "sm90", "0.5.23", "auto", "works"),
    ("gptq", "experts", None, "sm100", "0.5.23", "auto", "works"),
    ("w4afp8", "experts", None, "sm100", "0.5.23", "auto", "works"),
    ("fp8-channel", "experts", None, "sm120", "0.5.23", "auto", "works"),
    ("bnb-8bit", "experts", None, "sm80", "0.5.23", "auto", "works"),
    ("gguf", "experts", None, "sm80", "0.5.23", "auto", "works"),
    ("gptq", "experts", None, "sm90", "0.5.23", "auto", "works"),
    ("w4afp8", "experts", None, "sm90", "0.5.23", "auto", "works"),
    ("w4afp8", "experts", None, "sm120", "0.5.23", "auto", "unknown"),
    ("w4afp8", "experts", None, "sm89", "0.5.23", "auto", "refuses"),
    ("fp8-tensor", "experts", None, "sm89", "0.5.23", "auto", "works"),
    ("int8", "experts", None, "sm80", "0.5.23", "auto", "works"),
    ("bnb-4bit", "experts", None, "sm90", "0.5.23", "auto", "works"),
    # Seen on an H200 with 0.5.16
    ("bf16", "experts", QWEN, "sm90", "0.5.16", "triton", "recommended"),
    ("fp8-block", "experts", QWEN, "sm90", "0.5.16", "cutlass", "starts-but-wrong"),
    ("fp8-block", "experts", QWEN, "sm90", "0.5.16", "marlin", "refuses"),
    ("fp8-block", "experts", QWEN, "sm90", "0.5.16", "auto", "recommended"),
    ("mxfp4", "experts", QWEN, "sm90", "0.5.16", "auto", "refuses"),
    ("int4-group", "experts", QWEN, "sm90", "0.5.16", "cutlass", "works"),
    ("int4-group", "experts", QWEN, "sm90", "0.5.16", "deep_gemm", "works"),
    ("int4-group", "experts", QWEN, "sm90", "0.5.16", "triton", "works"),
    ("bf16", "experts", QWEN, "sm90", "0.5.16", "marlin", "works"),
    ("bf16", "experts", QWEN, "sm90", "0.5.16", "triton_kernel", "works"),
    ("bf16", "experts", QWEN, "sm90", "0.5.16", "flashinfer_cutlass", "unknown"),
    ("fp8-block", "experts", QWEN, "sm90", "0.5.16", "flashinfer_cutlass", "refuses"),
    ("fp8-block", "dense", QWEN, "sm90", "0.5.16", "deep_gemm", "works"),
    # FlashInfer 0.6.12 to 0.7.2 builds TRT-LLM's experts for capabilities 10 and 12 only
    ("bf16", "experts", QWEN, "sm90", "0.5.16", "flashinfer_trtllm", "refuses"),
    ("fp8-block", "experts", QWEN, "sm90", "0.5.23", "flashinfer_trtllm", "refuses"),
    ("int4-group", "experts", QWEN, "sm90", "0.5.16", "flashinfer_trtllm", "refuses"),
    # Attention, by the format of the KV cache
    ("bf16", "attention", LLAMA, "sm90", "0.5.23", "fa3", "works"),
    ("bf16", "attention", QWEN, "sm90", "0.5.16", "triton", "works"),
    ("bf16", "attention", LLAMA, "sm100", "0.5.23", "trtllm_mha", "works"),
    ("bf16", "attention", LLAMA, "sm120", "0.5.23", "flashinfer", "works"),
    ("bf16", "attention", LLAMA, "sm120", "0.5.23", "fa3", "refuses"),
    ("bf16", "attention", LLAMA, "sm120", "0.5.23", "trtllm_mha", "unknown"),
    ("fp8", "attention", LLAMA, "sm120", "0.5.23", "trtllm_mha", "refuses"),
    ("bf16", "attention", LLAMA, "sm120", JUNE, "trtllm_mha", "refuses"),
    ("bf16", "attention", LLAMA, "sm80", "0.5.23", "trtllm_mha", "refuses"),
    ("bf16", "attention", LLAMA, "sm80", "0.5.23", "fa3", "works"),
    ("bf16", "attention", LLAMA, "sm90", "0.5.23", "trtllm_mla", "refuses"),
    ("bf16", "attention", LLAMA, "sm90", "0.5.23", "torch_native", "starts-but-slow"),
    ("bf16", "attention", V3, "sm90", "0.5.23", "fa3", "works"),
    ("bf16", "attention", V3, "sm80", "0.5.23", "fa3", "refuses"),
    ("bf16", "attention", V3, "sm100", "0.5.23", "trtllm_mla", "works"),
    ("bf16", "attention", V3, "sm120", "0.5.23", "trtllm_mla", "refuses"),
    ("bf16", "attention", V3, "sm120", "0.5.23", "triton", "works"),
    ("bf16", "attention", V3, "sm120", "0.5.23", "cutedsl_mla", "refuses"),
    ("bf16", "attention", GPT_OSS, "sm90", "0.5.23", "flashinfer", "refuses"),
    ("bf16", "attention", GPT_OSS, "sm120", "0.5.23", "triton", "works"),
    ("bf16", "attention", QWEN36, "sm120", "0.5.23", "flashinfer", "works"),
    ("bf16", "attention", QWEN36, "sm120", "0.5.23", "fa4", "refuses"),
    ("bf16", "attention", QWEN36, "sm100", "0.5.23", "trtllm_mha", "works"),
    ("fp8", "attention", DSV4, "sm120", "0.5.23", "dsv4", "works"),
    ("fp8", "attention", DSV4, "sm120", JUNE, "dsv4", "starts-but-slow"),
    ("fp8", "attention", DSV4, "sm120", "0.5.23", "triton", "unknown"),
    ("fp8", "attention", V32, "sm120", "0.5.23", "dsa", "works"),
    ("fp8", "sparse-attention", V32, "sm120", "0.5.23", "trtllm", "refuses"),
    ("fp8", "sparse-attention", V32, "sm100", "0.5.23", "trtllm", "works"),
    ("fp8", "sparse-attention", V32, "sm90", "0.5.23", "flashmla_kv", "works"),
    ("bf16", "sparse-attention", V32, "sm90", "0.5.23", "fa3", "works"),
    ("fp8", "sparse-attention", GLM, "sm120", "0.5.23", "flashinfer_sparse_mla", "recommended"),
    ("fp8", "sparse-attention", V32, "sm120", "0.5.23", "flashinfer_sparse_mla", "unknown"),
    ("bf16", "attention", QWEN, "cpu", "0.5.23", "torch_native", "works"),
    ("bf16", "attention", QWEN, "cpu", "0.5.23", "triton", "refuses"),
    # Seen on a CPU with 0.5.23
    ("bf16", "experts", QWEN, "cpu", "0.5.23", "auto", "recommended"),
    ("bf16", "experts", QWEN, "cpu", "0.5.23", "marlin", "works"),
    ("fp8-block", "experts", QWEN, "cpu", "0.5.23", "auto", "refuses"),
    ("nvfp4", "experts", QWEN, "cpu", "0.5.23", "marlin", "refuses"),
    ("int4-group", "experts", QWEN, "cpu", "0.5.23", "auto", "refuses"),
    ("mxfp4", "experts", QWEN, "cpu", "0.5.23", "auto", "refuses"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("format", "module", "model", "gpu", "version", "backend", "expected"), MATRIX
)
def test_what_is_known_of_a_combination(format, module, model, gpu, version, backend, expected):
    assert verdict(format, gpu, version, backend, model=model, module=module) == expected


@pytest.mark.parametrize(
    ("format", "module", "model", "gpu", "version", "expected"),
    [
        ("nvfp4", "experts", DSV4, "sm120", "0.5.23", "flashinfer_trtllm_routed"),
        ("nvfp4", "experts", DSV4, "sm90", "0.5.14", "flashinfer_trtllm_routed"),
        ("nvfp4", "experts", QWEN, "sm90", "0.5.23", "marlin"),
        ("nvfp4", "experts", QWEN, "sm120", "0.5.23", "flashinfer_trtllm"),
        ("nvfp4", "experts", QWEN, "sm100", "0.5.23", "flashinfer_trtllm"),
        ("nvfp4", "dense", QWEN, "sm100", "0.5.23", "flashinfer_cutedsl"),
        ("fp8-block", "dense", QWEN, "sm90", "0.5.23", "deep_gemm"),
        ("fp8-block", "dense", QWEN, "sm100", "0.5.23", "deep_gemm"),
        ("mxfp4", "experts", GPT_OSS, "sm90", "0.5.23", "triton_kernel"),
        ("mxfp4", "experts", GPT_OSS, "sm100", "0.5.23", "flashinfer_mxfp4"),
        ("mxfp4", "experts", GPT_OSS, "sm120", JUNE, "triton_kernel"),
        ("mxfp4", "experts", GPT_OSS, "sm120", "0.5.23", "flashinfer_mxfp4"),
        ("mxfp4", "experts", DSV4, "sm100", "0.5.23", "flashinfer_mxfp4"),
        ("nvfp4", "dense", QWEN, "sm120", "0.5.23", "flashinfer_cutlass"),
        ("nvfp4", "dense", QWEN, "sm90", "0.5.23", "marlin"),
        ("fp8-block", "dense", QWEN, "sm120", "0.5.14", "triton"),
        ("fp8-block", "dense", QWEN, "sm120", "0.5.16", "cutlass"),
        ("fp8-block", "dense", QWEN, "sm120", "0.5.23", "cutlass"),
        ("mxfp4", "experts", DSV4, "sm90", "0.5.16", None),
        ("mxfp4", "experts", DSV4, "sm90", "0.5.23", "flashinfer_mxfp4"),
        ("mxfp4", "experts", DSV4, "sm120", JUNE, "marlin"),
        ("mxfp4", "experts", DSV4, "sm120", "0.5.16", "flashinfer_mxfp4"),
        ("mxfp4", "experts", DSV4, "sm120", "0.5.12.post1", None),
        ("mxfp4", "experts", GPT_OSS, "sm120", "0.5.16", "marlin"),
        ("mxfp8", "experts", None, "sm120", "0.5.23", "flashinfer_trtllm"),
        ("bf16", "experts", QWEN, "cpu", "0.5.23", None),
        # Attention: MLA fa3 on SM90, flashinfer or trtllm_mla on SM100, else triton; MHA trtllm_mha
        # on SM100, flashinfer on SM120
        ("bf16", "attention", LLAMA, "sm90", "0.5.23", "fa3"),
        ("bf16", "attention", LLAMA, "sm100", "0.5.23", "trtllm_mha"),
        ("bf16", "attention", LLAMA, "sm120", "0.5.23", "flashinfer"),
        ("bf16", "attention", V3, "sm90", "0.5.23", "fa3"),
        ("bf16", "attention", V3, "sm100", "0.5.23", "trtllm_mla"),
        ("bf16", "attention", "MiniCPM3ForCausalLM", "sm100", "0.5.23", "flashinfer"),
        ("bf16", "attention", V3, "sm120", "0.5.23", "triton"),
        ("bf16", "attention", GPT_OSS, "sm100", "0.5.23", "trtllm_mha"),
        ("bf16", "attention", GPT_OSS, "sm90", "0.5.23", "fa3"),
        ("bf16", "attention", GPT_OSS, "sm120", "0.5.23", "triton"),
        ("fp8", "attention", DSV4, "sm120", JUNE, "dsv4"),
        ("fp8", "attention", V32, "sm90", "0.5.23", "dsa"),
        ("fp8", "sparse-attention", V32, "sm120", "0.5.23", "trtllm"),
        ("fp8", "sparse-attention", GLM, "sm120", "0.5.23", "flashinfer_sparse_mla"),
        ("fp8", "sparse-attention", GLM, "sm120", "0.5.16", "trtllm"),
    ],
)
def test_what_a_build_takes_by_itself(format, module, model, gpu, version, expected):
    assert own_choice(format, gpu, version, model=model, module=module) == expected


@pytest.mark.parametrize("version", [JUNE, "0.5.12.post1"])
def test_a_pull_request_brings_what_a_later_release_has(version):
    without = routing.rank("nvfp4", "experts", DSV4, "sm120", version)
    assert {row["verdict"] for row in without} == {"starts-but-wrong"}
    assert verdict("nvfp4", "sm120", version, "marlin", model=DSV4, patches=[25820]) == (
        "recommended"
    )
    assert own_choice("nvfp4", "sm120", version, model=DSV4, patches=[25820]) == (
        "flashinfer_trtllm_routed"
    )


def test_ranks_run_from_the_best_to_the_worst():
    ranked = routing.rank("nvfp4", "experts", DSV4, "sm120", "0.5.23")
    places = [routing.VERDICTS.index(row["verdict"]) for row in ranked]
    assert places == sorted(places)
    assert ranked[0]["backend"] == "marlin"


def test_among_equals_the_builds_own_choice_comes_first():
    ranked = routing.rank("fp8-block", "dense", None, "sm120", "0.5.23")
    assert ranked[0]["backend"] == "cutlass"
    ranked = routing.rank("fp8-block", "dense", None, "sm120", "0.5.14")
    assert ranked[0]["backend"] == "triton"


def test_an_unknown_version_meets_no_row_about_versions():
    rows = {row["row"] for row in routing.rank("mxfp4", "experts", DSV4, "sm120", "unknown")}
    assert all("sglang" not in row for row in TABLE["rows"] if row["id"] in rows)


def test_backend_all_is_the_field_of_the_architecture():
    assert routing.backends("sm120")[:3] == [
        "marlin",
        "flashinfer_trtllm_routed",
        "flashinfer_trtllm",
    ]
    assert routing.backends("cpu") == ["triton", "marlin"]
    assert "auto" not in routing.backends("sm90")


@pytest.mark.parametrize(
    ("version", "range_", "inside"),
    [
        ("0.5.13.post1", "<0.5.14", True),
        ("0.5.13.post1", ">=0.5.13,<0.5.14", True),
        ("0.5.14.dev31+gabc1234", "<0.5.14", True),
        ("0.5.14.dev31+gabc1234", ">=0.5.13", True),
        ("0.5.14+cu129", ">=0.5.14", True),
        ("0.5.14+cu129", ">0.5.14", False),
        ("0.5.23", ">=0.5.9", True),
        ("0.0.0.dev1", ">=0.0.0", False),
        ("main", "<1", False),
        (None, None, True),
    ],
)
def test_version_ranges(version, range_, inside):
    assert versions.within(versions.parse(version), range_) is inside


def test_a_range_that_can_not_be_read_is_told():
    with pytest.raises(ValueError, match=r"0\.5\.14' is no version range"):
        versions.within(versions.parse("0.5.23"), "0.5.14")


def test_the_command_prints_reasons_and_sources(capsys):
    code = main(
        ["--format", "nvfp4", "--architecture", DSV4, "--gpu", "sm120", "--sglang", "0.5.23"]
    )
    printed = capsys.readouterr().out
    assert code == 0
    assert printed.index("marlin") < printed.index("flashinfer_trtllm_routed")
    assert "trtllm_batched_gemm_runner.cu:286" in printed
    assert "NVIDIA/nvidia-gcp-samples" in printed
    assert "By itself this build takes flashinfer_trtllm_routed" in printed


def test_the_command_prints_a_document(capsys):
    code = main(["--format", "nvfp4", "--gpu", "sm90", "--sglang", "0.5.16", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert code == 0
    assert rows[0]["backend"] == "marlin"
    assert set(rows[0]) == {"backend", "verdict", "reason", "sources", "row"}


def test_the_command_says_no(capsys):
    assert main(["--format", "nvfp4", "--gpu", "cpu", "--sglang", "0.5.23"]) == 1
    assert "refuses" in capsys.readouterr().out


def test_the_command_knows_a_patch(capsys):
    arguments = ["--format", "nvfp4", "--architecture", DSV4, "--gpu", "sm120", "--sglang", JUNE]
    assert main(arguments) == 1
    assert main([*arguments, "--patch", "25820"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--format", "nvpf4", "--gpu", "sm90", "--sglang", "0.5.23"], "did you mean nvfp4?"),
        (["--format", "nvfp4", "--gpu", "gfx942", "--sglang", "0.5.23"], "unknown; known: sm80"),
        (
            ["--format", "nvfp4", "--gpu", "sm90", "--sglang", "main"],
            "is no version; right: 0.5.23",
        ),
        (
            ["--format", "nvfp4", "--gpu", "sm90", "--sglang", "0.5.23", "--module", "expert"],
            "did you mean experts?",
        ),
        (
            [
                "--format",
                "nvfp4",
                "--gpu",
                "cpu",
                "--sglang",
                "0.5.23",
                "--module",
                "sparse-attention",
            ],
            "--format nvfp4: unknown; known: bf16, fp8",
        ),
    ],
)
def test_the_command_tells_bad_input_in_one_line(arguments, told, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
