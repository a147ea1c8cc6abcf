"""Formats: what the files declare, what the tensors show, and whether they agree."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import deepseek_v4
import pytest
import yaml
from tensor_files import Tensors, write, write_folder

from bringup import checkpoint, formats
from bringup.formats.__main__ import main
from documents import checked

PROJECT = Path(__file__).parents[2]
PUBLIC = PROJECT.parent / "shared/cases/configs"
FORMS = PROJECT.parent / "shared/checkpoints/arithmetic-moe"

MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 2,
    "num_experts": 4,
    "n_shared_experts": 1,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "torch_dtype": "bfloat16",
}
DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "torch_dtype": "bfloat16",
}
HEAD_AND_ENDS = {"embeddings": "bf16", "lm_head": "bf16"}

CASES = yaml.safe_load((Path(__file__).parent / "fixtures/formats.yaml").read_text())
ROWS, COLUMNS = 256, 512
"""The matrix that the cases of tensors store."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))


def describe(folder: Path) -> dict[str, Any]:
    return checked(formats.describe(str(folder)))


def configured(
    folder: Path, quantization: object | None, base: Mapping[str, Any] = MOE, **files: Any
) -> dict[str, Any]:
    """Describe a folder of JSON files alone."""
    config = {**base, **({} if quantization is None else {"quantization_config": quantization})}
    return describe(write_folder(folder / "configs", config, {}, **files))


def formats_of(entries: Mapping[str, Any] | None) -> dict[str, str]:
    return {class_: entry["format"] for class_, entry in (entries or {}).items()}


def quantized(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: format_ for name, format_ in formats_of(entries).items() if format_ != "bf16"}


def in_experts(format_: str) -> dict[str, str]:
    return {"attention": "bf16", "experts": format_, "shared_experts": "bf16"}


def everywhere(format_: str) -> dict[str, str]:
    return dict.fromkeys(in_experts(""), format_)


def group(bits: int, type_: str, inputs: object = None, **weights: object) -> dict[str, Any]:
    """Return one group of a compressed-tensors config."""
    return {
        "targets": ["Linear"],
        "input_activations": inputs,
        "weights": {"num_bits": bits, "type": type_, "dynamic": False, **weights},
    }


def packed(format_: str, group_: dict[str, Any], ignore: list[str]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "config_groups": {"group_0": group_},
        "ignore": ignore,
    }


NO_HEAD = ["lm_head"]
ONLY_EXPERTS = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.gate$"]


# Declared


@pytest.mark.parametrize("form", CASES["declared"])
def test_declared_forms(tmp_path, form):
    case = CASES["declared"][form]
    document = configured(tmp_path, case["config"])
    assert quantized(document["declared"]) == case["formats"]
    assert set(document["declared"]) == {*HEAD_AND_ENDS, *in_experts("")}
    assert document["declared"]["experts"]["group_size"] == case["group_size"]
    assert document["observed"] is None
    known = case["formats"].get("experts") != "unknown"
    assert document["verdict"] == ("consistent" if known else "metadata-incomplete")


def test_who_says_it_is_named_by_file_and_key(tmp_path):
    quantization = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["model.layers.*.self_attn"],
    }
    declared = configured(tmp_path, quantization)["declared"]
    assert declared["experts"]["said_by"] == "config.json: quantization_config.quant_method"
    assert (
        declared["attention"]["said_by"]
        == "config.json: quantization_config.modules_to_not_convert"
    )
    assert declared["embeddings"]["said_by"] == "config.json: dtype"


def test_hf_quant_config_decides_where_config_json_is_silent(tmp_path):
    said = {
        "producer": {"name": "modelopt"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "group_size": 16,
            "exclude_modules": ["lm_head", "model.layers.0.mlp.gate"],
        },
    }
    document = configured(tmp_path, None, hf_quant_config=said)
    assert formats_of(document["declared"]) == {**HEAD_AND_ENDS, **everywhere("nvfp4")}
    assert document["kv_cache"] == {
        "format": "fp8",
        "said_by": "hf_quant_config.json: quantization.kv_cache_quant_algo",
    }


def test_a_config_without_any_list_leaves_open_which_layers_are_meant(tmp_path):
    said = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    document = configured(tmp_path, None, hf_quant_config=said)
    assert document["declared"]["experts"]["format"] == "nvfp4"
    assert document["declared"]["experts"]["group_size"] == 16
    assert document["verdict"] == "metadata-incomplete"
    assert any("lists no excluded modules" in note for note in document["notes"])


def test_mixed_precision_alone_is_w4afp8_by_custom_and_never_sure(tmp_path):
    said = {"quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}}
    document = configured(tmp_path, None, hf_quant_config=said)
    assert document["declared"]["experts"]["format"] == "w4afp8"
    assert document["declared"]["attention"]["format"] == "fp8-block"
    assert document["verdict"] == "metadata-incomplete"


@pytest.mark.parametrize("said", ["FP8", {"num_bits": 8, "type": "float", "dynamic": False}])
def test_the_kv_cache_is_a_word_or_a_scheme(tmp_path, said):
    quantization = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "ignore": ["lm_head"],
        "kv_cache_scheme": said,
    }
    assert configured(tmp_path, quantization)["kv_cache"]["format"] == "fp8"


def test_a_config_nested_in_the_language_part(tmp_path):
    part = {
        **MOE,
        "quantization_config": packed(
            "pack-quantized", group(4, "int", group_size=32, strategy="group"), ONLY_EXPERTS
        ),
    }
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": part}
    document = describe(write_folder(tmp_path / "nested", config, {}))
    assert formats_of(document["declared"]) == {**HEAD_AND_ENDS, **in_experts("int4-group")}
    said_by = document["declared"]["experts"]["said_by"]
    assert said_by == "config.json: text_config.quantization_config.config_groups.group_0"
    # The list says `lm_head`; the tensor is called language_model.lm_head.
    assert document["model"]["experts"] == 4


def test_compression_config_is_read_too(tmp_path):
    config = {
        **MOE,
        "compression_config": packed(
            "float-quantized", group(8, "float", strategy="tensor"), NO_HEAD
        ),
    }
    document = describe(write_folder(tmp_path / "old", config, {}))
    assert document["declared"]["experts"]["format"] == "fp8-tensor"


def test_modelslim_says_a_word_for_each_tensor(tmp_path):
    description = {"model_quant_type": "W8A8_DYNAMIC", "lm_head.weight": "FLOAT"}
    for layer in range(2):
        for part in "qkvo":
            description[f"model.layers.{layer}.self_attn.{part}_proj.weight"] = "FLOAT"
        for part in ("gate", "up", "down"):
            description[f"model.layers.{layer}.mlp.experts.0.{part}_proj.weight"] = "W8A8_DYNAMIC"
    document = configured(tmp_path, None, quant_model_description=description)
    assert document["method"] == "modelslim"
    assert formats_of(document["declared"]) == {**HEAD_AND_ENDS, **in_experts("int8")}


def test_names_that_a_runtime_fuses_stand_for_their_parts(tmp_path):
    """As in RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8: blocks of FP8 and NVFP4 experts by patterns."""
    blocks = group(8, "float", strategy="block", block_structure=[128, 128])
    fp4 = group(
        4, "float", {"num_bits": 4, "type": "float"}, strategy="tensor_group", group_size=16
    )
    said = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "ignore": ["head"],
        "config_groups": {
            "group_0": {**blocks, "targets": [r"re:.*attn\.(fused_wqa_wkv|wq_b|wo_a|wo_b)$"]},
            "group_1": {**fp4, "targets": [r"re:.*ffn\.experts\..*"]},
        },
    }
    declared = configured(tmp_path, said, deepseek_v4.CONFIG)["declared"]
    assert declared["attention"]["formats"].keys() == {"fp8-block"}
    assert declared["attention"]["group_size"] == [128, 128]
    assert declared["experts"]["format"] == "nvfp4"


def test_gguf_is_named(tmp_path):
    made = write_folder(tmp_path / "gguf", DENSE, {})
    (made / "model-q4.gguf").write_bytes(b"GGUF" + b"\0" * 60)
    document = describe(made)
    assert set(formats_of(document["declared"]).values()) == {"gguf"}
    (made / "model-q4.gguf").write_bytes(b"GGML" + b"\0" * 60)
    with pytest.raises(checkpoint.UnusableError, match=r"model-q4\.gguf: doesn't begin as a GGUF"):
        describe(made)


def test_expert_dtype_overrides_the_method(tmp_path):
    config = {**deepseek_v4.CONFIG, "expert_dtype": "fp4", "quantization_config": deepseek_v4.FP8}
    document = describe(write_folder(tmp_path / "v4", config, {}))
    assert formats_of(document["declared"]) == {
        "attention": "fp8-block",
        "shared_experts": "fp8-block",
        "experts": "mxfp4",
        "draft": "mxfp4",
        **HEAD_AND_ENDS,
    }
    assert document["declared"]["experts"]["said_by"] == "config.json: expert_dtype"


# The public checkpoints' own files


@pytest.mark.parametrize("name", CASES["public"])
def test_public_checkpoints(name):
    if not PUBLIC.is_dir():
        pytest.skip("the public checkpoints' configs are not here")
    case = CASES["public"][name]
    document = describe(PUBLIC / name)
    assert quantized(document["declared"]) == case["formats"]
    assert document["verdict"] == case["verdict"]
    assert (document["kv_cache"] or {}).get("format") == case["kv_cache"]
    assert document["observed"] is None


def test_the_numbers_of_a_public_config():
    if not PUBLIC.is_dir():
        pytest.skip("the public checkpoints' configs are not here")
    model = describe(PUBLIC / "nvidia--Qwen3.6-35B-A3B-NVFP4")["model"]
    assert (model["layers"], model["experts"], model["experts_per_token"]) == (40, 256, 8)
    assert (model["attention_layers"], model["linear_attention_layers"]) == (10, 30)
    assert (model["kv_heads"], model["head_dim"], model["context"]) == (2, 256, 262144)
    assert (model["draft_layers"], model["shared_experts"], model["dtype"]) == (1, 1, "bf16")


@pytest.mark.parametrize(
    ("form", "experts", "attention"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp8", "fp8-block", "fp8-block"),
        ("int4", "int4-group", "bf16"),
        ("mixed", "nvfp4", "fp8-tensor"),
        ("mxfp4", "mxfp4", "bf16"),
        ("nvfp4", "nvfp4", "bf16"),
    ],
)
def test_the_arithmetic_checkpoints(form, experts, attention):
    if not FORMS.is_dir():
        pytest.skip("the arithmetic checkpoint's forms are not here")
    document = describe(FORMS / form)
    found = formats_of(document["observed"])
    assert (found["experts"], found["attention"], found["lm_head"]) == (experts, attention, "bf16")
    assert document["verdict"] == "consistent"


def test_the_embedded_checkpoint_is_bf16_everywhere():
    document = describe(PROJECT / "resources/arithmetic-moe/bf16")
    assert document["verdict"] == "consistent"
    assert set(formats_of(document["observed"]).values()) == {"bf16"}
    # 4 layers × 8 experts × 3 matrices of 256 × 256, two bytes each.
    experts = document["observed"]["experts"]
    assert (experts["weights"], experts["parameters"]) == (96, 96 * 256 * 256)
    assert experts["bytes"] == 2 * experts["parameters"]


# Observed


@pytest.mark.parametrize("form", CASES["observed"])
def test_observed_forms(tmp_path, form):
    case = CASES["observed"][form]
    name = "model.layers.0.mlp.experts.{}.down_proj"
    tensors = {
        f"{name.format(expert)}.{part}": each
        for expert in range(4)
        for part, each in case["tensors"].items()
    }
    experts = describe(write_folder(tmp_path / "it", MOE, tensors))["observed"]["experts"]
    assert (experts["format"], experts["scale_dtype"]) == (case["format"], case["scale_dtype"])
    assert experts["group_size"] == case["group_size"]
    assert (experts["tensors"], experts["weights"]) == (4 * len(case["tensors"]), 4)
    assert experts["parameters"] == 4 * ROWS * COLUMNS


@pytest.mark.parametrize("form", CASES["fused"])
def test_experts_fused_into_one_tensor(tmp_path, form):
    case = CASES["fused"][form]
    tensors = {f"model.layers.0.mlp.experts.{part}": each for part, each in case["tensors"].items()}
    experts = describe(write_folder(tmp_path / "it", MOE, tensors))["observed"]["experts"]
    assert (experts["format"], experts["group_size"]) == (case["format"], case["group_size"])
    assert (experts["tensors"], experts["weights"]) == (len(tensors), 1)
    assert experts["parameters"] == 4 * ROWS * COLUMNS


def test_every_module_class_is_told_apart(tmp_path):
    names = {
        "model.embed_tokens": "embeddings",
        "backbone.embeddings": "embeddings",
        "embed": "embeddings",
        "lm_head": "lm_head",
        "head": "lm_head",
        "language_model.lm_head": "lm_head",
        "model.layers.0.self_attn.q_proj": "attention",
        "layers.0.attn.wq_a": "attention",
        "model.language_model.layers.0.linear_attn.in_proj_qkv": "attention",
        "backbone.layers.0.mixer.q_proj": "attention",
        "backbone.layers.0.mixer.in_proj": "other",
        "model.layers.0.mlp.gate_proj": "dense_mlp",
        "model.layers.0.mlp.gate": "other",
        "layers.0.ffn.gate": "other",
        "model.layers.0.mlp.shared_expert_gate": "other",
        "model.layers.0.mlp.experts.3.up_proj": "experts",
        "layers.0.ffn.experts.3.w1": "experts",
        "model.layers.0.block_sparse_moe.experts.3.w1": "experts",
        "backbone.layers.0.mixer.experts.3.up_proj": "experts",
        "model.layers.0.mlp.shared_expert.up_proj": "shared_experts",
        "layers.0.ffn.shared_experts.w1": "shared_experts",
        "mtp.0.ffn.experts.3.w1": "draft",
        "mtp.layers.0.self_attn.q_proj": "draft",
        "model.layers.2.mlp.experts.0.up_proj": "draft",
        "model.layers.2.eh_proj": "draft",
        "vision_tower.encoder.blocks.30.attn.qkv": "other",
        "model.visual.blocks.0.mlp.up_proj": "other",
    }
    from bringup.formats.modules import classify

    # The model has two layers: the third is a draft layer.
    assert {name: classify(name, 2) for name in names} == names


# Both: the checkpoint that decided the story, at full shape and count


@pytest.fixture(scope="module")
def nvfp4(tmp_path_factory):
    folder = tmp_path_factory.mktemp("v4")
    config = {**deepseek_v4.CONFIG, "expert_dtype": "fp4", "quantization_config": deepseek_v4.NVFP4}
    return deepseek_v4.write_checkpoint(folder, "nvfp4", config)


def rewritten(folder: Path, config: dict[str, Any], **files: Any) -> Path:
    """Change the JSON files of a checkpoint; the weights stay what they are."""
    (folder / "hf_quant_config.json").unlink(missing_ok=True)
    return write_folder(folder, config, {}, **files)


def test_deepseek_v4_flash_nvfp4(nvfp4):
    config = {**deepseek_v4.CONFIG, "expert_dtype": "fp4", "quantization_config": deepseek_v4.NVFP4}
    document = describe(rewritten(nvfp4, config))
    assert document["verdict"] == "consistent"
    assert document["contradictions"] == []
    expected = {
        "attention": "fp8-block",
        "shared_experts": "fp8-block",
        "experts": "nvfp4",
        "draft": "mxfp4",
        "lm_head": "bf16",
        "embeddings": "bf16",
        "other": "bf16",
    }
    assert formats_of(document["observed"]) == expected
    assert formats_of(document["declared"]) == expected
    assert formats_of(document["classes"]) == expected
    experts = document["observed"]["experts"]
    assert experts["weights"] == 43 * 256 * 3 == 33_024
    assert experts["tensors"] == 4 * 33_024
    assert experts["parameters"] == 33_024 * 4096 * 2048
    # Half a byte, a sixteenth for the scales, two float32 a matrix.
    assert experts["bytes"] == experts["parameters"] * 9 // 16 + 33_024 * 8
    assert document["observed"]["draft"]["formats"].keys() == {"bf16", "fp8-block", "mxfp4"}


def test_fp8_said_of_nvfp4_experts_is_a_conflict_in_these_words(nvfp4):
    config = {
        **deepseek_v4.CONFIG,
        "architectures": ["SomethingElse"],
        "quantization_config": deepseek_v4.FP8,
    }
    document = describe(rewritten(nvfp4, config))
    assert document["verdict"] == "conflict"
    assert document["contradictions"][-1] == (
        "config.json: quantization_config.quant_method says fp8-block for experts; 33,024 of their "
        "tensors are U8 with F8_E4M3 scales in groups of 16: nvfp4"
    )
    assert document["classes"]["experts"] == {"format": "nvfp4", "group_size": 16}


def few_experts(folder: Path, experts: deepseek_v4.Experts = "nvfp4", **config: Any) -> Path:
    """Write a DeepSeek-V4 of one layer, a draft layer, and two experts in each."""
    whole = {**deepseek_v4.CONFIG, "num_hidden_layers": 1, **config}
    return deepseek_v4.write_checkpoint(folder / "v4", experts, whole, layers=1, each=2)


def test_metadata_older_than_the_weights_is_a_conflict(tmp_path):
    """The revision of NVFP4 weights that still had the metadata of the MXFP4 ones (PR 25820)."""
    made = few_experts(tmp_path, expert_dtype="fp4", quantization_config=deepseek_v4.FP8)
    document = describe(made)
    assert document["verdict"] == "conflict"
    assert "config.json: expert_dtype says mxfp4 for experts" in document["contradictions"][0]


def test_a_drifted_revision_contradicts_itself_and_shows_its_hashes(tmp_path):
    """Revision 48bfe38c: quant_algo null, yet a list of experts."""
    made = few_experts(tmp_path, expert_dtype="fp4", quantization_config=deepseek_v4.FP8)
    listed = {
        f"layers.0.ffn.experts.{e}.w{n}": {"awq_block_size": 16} for e in (0, 1) for n in (1, 2, 3)
    }
    drifted = {"quantization": {"quant_algo": None, "quantized_layers": listed}}
    (made / "hf_quant_config.json").write_text(json.dumps(drifted))
    document = describe(made)
    assert document["verdict"] == "conflict"
    assert any(
        line.endswith("quant_algo is null, yet quantized_layers lists 6 modules")
        for line in document["contradictions"]
    )
    assert set(document["json_hashes"]) == {"config.json", "hf_quant_config.json"}


def test_two_files_that_contradict_each_other(tmp_path):
    said = {
        "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    }
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    document = configured(tmp_path, fp8, DENSE, hf_quant_config=said)
    assert document["verdict"] == "conflict"
    assert document["contradictions"][0] == (
        "config.json: quantization_config.quant_method says fp8-block for attention, "
        "hf_quant_config.json: quantization.quant_algo says nvfp4"
    )


@pytest.mark.parametrize(
    ("experts", "verdict"), [("fp8", "consistent"), ("mxfp4", "metadata-incomplete")]
)
def test_a_config_that_fits_two_checkpoints_lets_the_tensors_decide(tmp_path, experts, verdict):
    made = few_experts(tmp_path, experts, quantization_config=deepseek_v4.FP8)
    document = describe(made)
    expected = "fp8-block" if experts == "fp8" else "mxfp4"
    assert document["observed"]["experts"]["format"] == expected
    assert document["classes"]["experts"]["format"] == expected
    assert document["verdict"] == verdict
    assert document["contradictions"] == []


def linear(name: str, form: str) -> Tensors:
    return {f"{name}.{part}": each for part, each in CASES["observed"][form]["tensors"].items()}


NVFP4, FP8 = "modelopt nvfp4", "fp8 blocks of DeepSeek-V3"


def small(attention: str = "bf16", experts: str = "bf16", draft: str | None = None) -> Tensors:
    found: dict[str, tuple[str, list[int]]] = {
        "model.layers.0.mlp.gate.weight": ("BF16", [4, COLUMNS])
    }
    for part in "qkvo":
        found.update(linear(f"model.layers.0.self_attn.{part}_proj", attention))
    for expert in range(4):
        found.update(linear(f"model.layers.0.mlp.experts.{expert}.up_proj", experts))
        if draft:
            found.update(linear(f"mtp.layers.0.mlp.experts.{expert}.up_proj", draft))
    return found


def test_bf16_tensors_under_an_fp8_config_are_a_conflict(tmp_path):
    config = {
        **MOE,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    document = describe(write_folder(tmp_path / "it", config, small()))
    assert document["verdict"] == "conflict"
    assert any(
        "says fp8-block for experts; 4 of their tensors are BF16: bf16" in each
        for each in document["contradictions"]
    )


def test_fp4_tensors_under_a_config_that_lost_its_quantization_are_a_conflict(tmp_path):
    document = describe(write_folder(tmp_path / "it", MOE, small(experts=NVFP4)))
    assert document["verdict"] == "conflict"
    assert document["contradictions"][0].startswith(
        "config.json: dtype says bf16 for experts; 4 of"
    )


def test_a_draft_layer_that_a_list_leaves_out_is_not_what_the_rest_is(tmp_path):
    """A draft read as NVFP4 against its `ignore` cost the acceptance length (6 → 1.2)."""
    said = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": ["lm_head", "mtp*", "*self_attn*"],
    }
    config = {**MOE, "quantization_config": said}
    document = describe(write_folder(tmp_path / "it", config, small(experts=NVFP4, draft="bf16")))
    assert document["verdict"] == "consistent"
    assert formats_of(document["classes"])["draft"] == "bf16"
    wrong = describe(write_folder(tmp_path / "it", config, small(experts=NVFP4, draft=NVFP4)))
    assert wrong["verdict"] == "conflict"
    assert "quantization_config.ignore says bf16 for draft" in wrong["contradictions"][0]


def test_a_list_whose_names_miss_is_named(tmp_path):
    """Exclusions without the `model.` of the tensors ended in shape errors (issue 36596)."""
    said = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": ["lm_head", "layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj"],
    }
    document = describe(
        write_folder(tmp_path / "it", {**MOE, "quantization_config": said}, small(experts=NVFP4))
    )
    assert document["verdict"] == "conflict"
    line = next(each for each in document["contradictions"] if "for attention" in each)
    assert "names modules that aren't there: lm_head, layers.0.self_attn.q_proj" in line


def test_fused_names_in_a_list_cover_their_parts(tmp_path):
    said = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": [
            "lm_head",
            "model.layers.0.self_attn.qkv_proj",
            "model.layers.0.self_attn.o_proj",
        ],
    }
    document = describe(
        write_folder(tmp_path / "it", {**MOE, "quantization_config": said}, small(experts=NVFP4))
    )
    assert document["verdict"] == "consistent"


def test_matrices_that_are_never_quantized_are_no_conflict(tmp_path):
    config = {
        **MOE,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    tensors = {
        **small(attention=FP8, experts=FP8),
        "model.layers.0.self_attn.indexer.weights_proj.weight": ("BF16", [64, COLUMNS]),
    }
    document = describe(write_folder(tmp_path / "it", config, tensors))
    assert document["verdict"] == "consistent"
    assert set(document["observed"]["attention"]["formats"]) == {"bf16", "fp8-block"}


def test_mamba_layers_are_linear_layers_too(tmp_path):
    """Of a Nemotron-H in FP8 no list names the Mamba layers' projections."""
    said = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "ignore": ["lm_head", "*.mixer.conv1d"],
    }
    config = {**MOE, "architectures": ["NemotronHForCausalLM"], "quantization_config": said}
    tensors = {
        **linear("backbone.layers.0.mixer.in_proj", "fp8, one scale"),
        "backbone.layers.0.mixer.conv1d.weight": ("BF16", [64, 4]),
        "backbone.layers.1.mixer.gate.weight": ("BF16", [4, COLUMNS]),
    }
    document = describe(write_folder(tmp_path / "it", config, tensors))
    assert document["observed"]["other"]["format"] == "fp8-tensor"
    assert document["declared"]["other"]["format"] == "fp8-tensor"
    assert document["verdict"] == "consistent"


def test_scales_for_activations_that_a_config_promises_must_be_there(tmp_path):
    said = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]}
    tensors = {
        name: each for name, each in small(experts=NVFP4).items() if "input_scale" not in name
    }
    document = describe(
        write_folder(tmp_path / "it", {**MOE, "quantization_config": said}, tensors)
    )
    assert document["verdict"] == "conflict"
    less = {**said, "quant_algo": "W4A16_NVFP4"}
    fine = describe(write_folder(tmp_path / "it", {**MOE, "quantization_config": less}, tensors))
    assert fine["verdict"] == "consistent"


def test_groups_of_another_size_are_a_conflict(tmp_path):
    said = packed("pack-quantized", group(4, "int", group_size=128, strategy="group"), ONLY_EXPERTS)
    name = "model.layers.0.mlp.experts.0.up_proj"
    tensors = {
        f"{name}.{part}": each
        for part, each in CASES["observed"]["compressed-tensors int4"]["tensors"].items()
    }
    document = describe(
        write_folder(tmp_path / "it", {**MOE, "quantization_config": said}, tensors)
    )
    assert document["contradictions"] == [
        "config.json: quantization_config.config_groups.group_0 says int4-group in groups of 128 "
        "for experts; 1 of their tensors are I32 with BF16 scales in groups of 32: int4-group"
    ]


def test_activation_words_that_differ_inside_a_file_are_a_note(tmp_path):
    document = configured(
        tmp_path, {**deepseek_v4.NVFP4}, {**deepseek_v4.CONFIG, "expert_dtype": "fp4"}
    )
    assert document["verdict"] == "consistent"
    assert any("config_groups.group_0 says static inputs" in note for note in document["notes"])


# Bad input


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"quantization_config": {"quant_algo": "FP8", "quantized_layers": {"a\nb": 1}}},
            "quantized_layers.a b: holds a int",
        ),
        ({"architectures": "LlamaForCausalLM"}, "architectures: 'LlamaForCausalLM' is no list"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers: two is no such number of a model"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers"),
        ({"quantization_config": ["fp8"]}, "quantization_config: holds a list, not an object"),
        (
            {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": "lm_head"}},
            "modules_to_not_convert: holds a str, not a list",
        ),
        ({"quantization_config": packed("x", group(4, "int"), ["re:(("])}, "'re:((' is no pattern"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": [1]}},
            "config_groups: holds a list",
        ),
        (
            {
                "quantization_config": {
                    "quant_algo": "MIXED_PRECISION",
                    "quantized_layers": {"a": 1},
                }
            },
            "quantized_layers.a: holds a int",
        ),
    ],
)
def test_a_config_with_the_wrong_kind_of_value(tmp_path, change, says):
    made = write_folder(tmp_path / "it", {**DENSE, **change}, {})
    metadata = checkpoint.metadata({"path": str(made)}, name="it")
    document = checked(formats.detect(metadata))
    assert document["status"] == "failed"
    message = document["reason"]["message"]
    assert message.startswith("config.json: ")
    assert says in message
    assert "\n" not in message


ODD_VALUES = [None, [], {}, "x", "", -1, True, 1.5, 10**30, [1], [None], {"a": 1}, [[]], ["re:("]]


def test_any_value_anywhere_is_an_answer_or_one_line(tmp_path):
    """No value of a config, whatever its kind, ends in another error than that it is wrong."""
    random.seed(1)
    configs = [
        {**MOE, "quantization_config": each["config"]} for each in CASES["declared"].values()
    ]
    configs.append({**deepseek_v4.CONFIG, "quantization_config": deepseek_v4.NVFP4})
    for number in range(150):
        config = copy.deepcopy(random.choice(configs))
        holder, key = random.choice(list(places(config)))
        holder[key] = random.choice(ODD_VALUES)
        made = write_folder(tmp_path / str(number), config, {})
        document = formats.detect(checkpoint.metadata({"path": str(made)}, name="it"))
        assert document["status"] in ("ok", "failed")
        assert document["status"] == "ok" or "\n" not in document["reason"]["message"]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a JSON value: what holds it, and the key or position."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def test_after_failed_metadata_detect_is_skipped(tmp_path):
    (tmp_path / "empty").mkdir()
    metadata = checkpoint.metadata({"path": str(tmp_path / "empty")}, name="it")
    document = checked(formats.detect(metadata))
    assert document["status"] == "skipped"


def test_a_cache_that_was_cleared_is_no_fact_about_the_checkpoint(tmp_path, monkeypatch):
    made = write_folder(tmp_path / "it", MOE, small())
    metadata = checkpoint.metadata({"path": str(made)}, name="it")
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "another"))
    with pytest.raises(
        checkpoint.UnreachableError, match=r"remove this checkpoint's metadata\.json"
    ):
        formats.detect(metadata)


def test_detect_is_a_function_of_the_metadata(tmp_path):
    made = write_folder(tmp_path / "it", MOE, small())
    metadata = checkpoint.metadata({"path": str(made)}, name="it")
    first = json.dumps(formats.detect(metadata))
    write(made / "model.safetensors", small(experts=NVFP4))
    assert json.dumps(formats.detect(metadata)) == first


# As a user calls it


def test_the_command_prints_a_table_and_says_by_its_exit_code(tmp_path, capsys):
    said = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*"]}
    made = write_folder(tmp_path / "it", {**MOE, "quantization_config": said}, small(experts=NVFP4))
    assert main([str(made)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["class", "declared", "observed", "parameters", "bytes"]
    assert ["experts", "nvfp4", "16", "nvfp4", "16", "524,288", "294,944"] in map(str.split, lines)
    assert lines[-1] == "Qwen3MoeForCausalLM, KV cache as the model: consistent"

    write_folder(made, MOE, small(experts=NVFP4))
    assert main([str(made), "--json"]) == 1
    document = checked(json.loads(capsys.readouterr().out))
    assert document["verdict"] == "conflict"

    assert main([str(made)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"config.json is sha256 {document['json_hashes']['config.json']}"
    assert lines[-2] == f"contradiction: {document['contradictions'][0]}"


@pytest.mark.parametrize("where", ["/nowhere/at/all", "./nowhere"])
def test_the_command_refuses_what_is_not_there(where, capsys):
    assert main([where]) == 2
    assert (
        capsys.readouterr().err == f"error: {Path(where)}: no such folder (checkpoint's `path`)\n"
    )


def test_the_command_never_shows_a_traceback(tmp_path):
    made = write_folder(tmp_path / "it", [], {})
    command = [sys.executable, "-m", "bringup.formats", str(made)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"error: {made}: config.json: holds a list, not an object\n"
