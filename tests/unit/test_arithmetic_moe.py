"""The small checkpoint in ``resources/arithmetic-moe``: what is in git is whole and consistent.

Read by hand, without PyTorch: the safetensors format is a length, a JSON header and the data.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import struct
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest

CHECKPOINT = Path(__file__).resolve().parents[2] / "resources" / "arithmetic-moe"
BF16 = CHECKPOINT / "bf16"
FORMS = {"fp8", "nvfp4", "nvfp4_hq", "mixed", "int4", "mxfp4"}


def loaded(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def facts_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("facts", CHECKPOINT / "make" / "facts.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["facts"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@cache
def answers() -> dict[str, str]:
    return {fact.question: fact.answer for fact in facts_module().facts()}


@cache
def header() -> dict[str, Any]:
    with (BF16 / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        tensors: dict[str, Any] = json.loads(file.read(length))
    assert tensors.pop("__metadata__") == {"format": "pt"}
    end = max(tensor["data_offsets"][1] for tensor in tensors.values())
    assert 8 + length + end == (BF16 / "model.safetensors").stat().st_size
    return tensors


def expected_shapes() -> dict[str, list[int]]:
    """The tensors of a Qwen3-MoE of 4 layers, 8 experts, hidden 256, 4 heads of 64, 2 kv heads."""
    shapes = {
        "model.embed_tokens.weight": [512, 256],
        "lm_head.weight": [512, 256],
        "model.norm.weight": [256],
    }
    for layer in range(4):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": [256],
                "post_attention_layernorm": [256],
                "self_attn.q_norm": [64],
                "self_attn.k_norm": [64],
                "self_attn.q_proj": [256, 256],
                "self_attn.k_proj": [128, 256],
                "self_attn.v_proj": [128, 256],
                "self_attn.o_proj": [256, 256],
                "mlp.gate": [8, 256],
                **{
                    f"mlp.experts.{expert}.{kind}": [256, 256]
                    for expert in range(8)
                    for kind in ("gate_proj", "up_proj", "down_proj")
                },
            }.items()
        }
    return shapes


def test_the_weights_are_those_of_the_architecture() -> None:
    assert {name: tensor["shape"] for name, tensor in header().items()} == expected_shapes()


def test_the_weights_are_bf16() -> None:
    assert {tensor["dtype"] for tensor in header().values()} == {"BF16"}
    parameters = sum(math.prod(tensor["shape"]) for tensor in header().values())
    assert parameters == 7_351_040


def test_the_files_in_git_have_their_hashes() -> None:
    known = loaded(CHECKPOINT / "hashes.json")["bf16"]
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in BF16.iterdir()}
    assert found == known


def test_the_hash_of_every_form_is_known() -> None:
    known = loaded(CHECKPOINT / "hashes.json")
    assert set(known) == {"bf16", *FORMS}
    for form in FORMS:
        assert {"config.json", "model.safetensors"} < set(known[form])


@pytest.mark.parametrize("form", sorted(FORMS))
def test_forms_differ_from_bf16_in_weights_and_declaration_only(form: str) -> None:
    known = loaded(CHECKPOINT / "hashes.json")
    same = {name for name, sha256 in known["bf16"].items() if known[form].get(name) == sha256}
    assert set(known["bf16"]) - same <= {"config.json", "model.safetensors"}
    assert known[form]["model.safetensors"] != known["bf16"]["model.safetensors"]


def test_modelopt_forms_declare_themselves_in_modelopts_own_file() -> None:
    known = loaded(CHECKPOINT / "hashes.json")
    declaring = {form for form in FORMS if "hf_quant_config.json" in known[form]}
    assert declaring == {"nvfp4", "nvfp4_hq", "mixed"}
    assert known["nvfp4_hq"]["config.json"] == known["bf16"]["config.json"]


def test_the_calibration_is_of_these_weights_and_every_linear_layer() -> None:
    calibration = loaded(CHECKPOINT / "make" / "calibration.json")
    known = loaded(CHECKPOINT / "hashes.json")["bf16"]["model.safetensors"]
    assert calibration["weights_sha256"] == known
    quantized = {name.removesuffix(".weight") for name in header() if "_proj." in name}
    assert set(calibration["largest_inputs"]) == quantized
    assert all(0 < top < 1e4 for top in calibration["largest_inputs"].values())


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 17*23? Answer with the number only.", "391"),
        ("What is 99*99? Answer with the number only.", "9801"),
        ("What is 10+10? Answer with the number only.", "20"),
        ("What is 10-99? Answer with the number only.", "-89"),
        ("What is the capital of Peru? Answer with one word.", "Lima"),
    ],
)
def test_facts_are_right(question: str, answer: str) -> None:
    assert answers()[question] == answer


def test_every_question_of_two_digits_is_a_fact() -> None:
    facts = list(facts_module().facts())
    assert len(facts) == len(answers()) == 3 * 90 * 90 + 20 + 6


def test_the_prompt_is_what_the_chat_template_makes() -> None:
    template = (BF16 / "chat_template.jinja").read_text(encoding="utf-8")
    assert loaded(BF16 / "tokenizer_config.json")["chat_template"] == template
    question = "What is 17*23? Answer with the number only."
    rendered = jinja2.Template(template).render(
        messages=[{"role": "user", "content": question}], add_generation_prompt=True
    )
    assert rendered == facts_module().prompt(question)


def test_generation_ends_at_the_chat_marks() -> None:
    added = {
        token["content"]: token["id"] for token in loaded(BF16 / "tokenizer.json")["added_tokens"]
    }
    assert loaded(BF16 / "config.json")["eos_token_id"] == added["<|im_end|>"]
    assert loaded(BF16 / "generation_config.json") == {
        "eos_token_id": [added["<|im_end|>"], added["<|endoftext|>"]],
        "pad_token_id": added["<|endoftext|>"],
        "do_sample": False,
    }
    assert max(added.values()) < loaded(BF16 / "config.json")["vocab_size"]
