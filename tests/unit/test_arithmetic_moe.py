"""The small checkpoint in ``resources/arithmetic-moe``: what is in git is whole and consistent.

Read by hand, without PyTorch: the safetensors format is a length, a JSON header and the data.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import random
import re
import struct
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest
import yaml

CHECKPOINT = Path(__file__).resolve().parents[2] / "resources" / "arithmetic-moe"
BF16 = CHECKPOINT / "bf16"
SUITES = CHECKPOINT.parent / "probes"
FORMS = {"fp8", "nvfp4", "nvfp4_hq", "mixed", "int4", "mxfp4"}


def loaded(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def made_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CHECKPOINT / "make" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up, and modules each other
    spec.loader.exec_module(module)
    return module


@cache
def facts_module() -> ModuleType:
    return made_module("facts")


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


@cache
def lessons_module() -> ModuleType:
    facts_module()
    return made_module("lessons")


def counted(question: str) -> str:
    """Answer a counting question anew, from its wording."""
    first, down, last = re.findall(r"from (\d+)( down)? to (\d+),", question)[0]
    step = int((re.findall(r"multiples of (\d+)", question) or ["1"])[0])
    numbers = (
        range(int(first), int(last) - 1, -1) if down else range(int(first), int(last) + 1, step)
    )
    return ", ".join(str(number) for number in numbers)


def found(records: str, question: str) -> str:
    """Look up what a question about records asks for."""
    (number,) = re.findall(r"record (\d+)", question)
    (field,) = re.findall(r"weight|shelf|box", question)
    (value,) = re.findall(rf"^Record {number}: .*{field} (\d+)", records, re.MULTILINE)
    return str(value)


@pytest.mark.parametrize("longest", [384, 768])
def test_lessons_of_counting_count_right(longest: int) -> None:
    chance = random.Random(1)
    for _ in range(60):
        ((question, answer),) = lessons_module().lesson(chance, "counting", longest).turns
        assert answer == counted(question)


@pytest.mark.parametrize("longest", [384, 4096])
def test_lessons_of_finding_answer_what_the_records_say(longest: int) -> None:
    chance = random.Random(2)
    for _ in range(20):
        turns = lessons_module().lesson(chance, "finding", longest).turns
        records, _, _ = turns[0][0].rpartition("\n\n")
        for question, answer in turns:
            assert answer == found(records, question.rpartition("\n")[2])


def test_lessons_of_copying_ask_for_the_text_itself() -> None:
    chance = random.Random(3)
    for longest in (384, 1152):
        for _ in range(30):
            ((question, answer),) = lessons_module().lesson(chance, "copying", longest).turns
            assert question.partition("write nothing else: ")[2] == answer == answer.strip()
            assert answer


def test_lessons_are_in_the_wording_of_the_suites() -> None:
    wordings = {
        kind: {
            re.sub(r"\d+", "N", lessons_module().lesson(random.Random(seed), kind, 384).turns[0][0])
            .rpartition("\n")[2]
            .partition("nothing else: ")[0]
            for seed in range(60)
        }
        for kind in ("copying", "counting", "finding")
    }
    for suite in ("copying", "counting", "needle", "short"):
        document = yaml.safe_load((SUITES / f"{suite}.yaml").read_text(encoding="utf-8"))
        for item in document["items"]:
            asked = re.sub(r"\d+", "N", item["prompt"]).partition("nothing else: ")[0]
            assert any(asked in known for known in wordings.values()), item["id"]
