"""Readings: what a build takes a checkpoint for, against what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_engine
import pytest

from bringup import engine, reading
from bringup.reading import __main__ as command
from documents import checked

ENGINE = {
    "engine": "x",
    "version": "0.5.13.post1",
    "choices": {"quantization": ["fp8", "mxfp4", "awq"]},
}

ANSWER = {
    "error": None,
    "config": None,
    "cuda": False,
    "registered": ["fp8", "modelopt_fp4"],
    "quantization": None,
    "declared": None,
    "nvfp4_moe": None,
    "fp4_experts": False,
    "dtype": "bfloat16",
    "architectures": ["Qwen3MoeForCausalLM"],
    "architecture_known": True,
}


def judged(
    answer: dict[str, Any],
    actual: str,
    *,
    declared: str | None = None,
    architecture: str = "Qwen3MoeForCausalLM",
    class_: str = "experts",
    **engine_fields: Any,
) -> dict[str, Any]:
    """Judge an answer about a checkpoint whose ``class_`` is ``actual``."""
    format_ = {
        "architecture": architecture,
        "classes": {class_: {"format": actual, "group_size": None}},
        "declared": {class_: {"format": declared or actual}},
    }
    return reading.judged({**ANSWER, **answer}, format_, {**ENGINE, **engine_fields})


DEEPSEEK = "DeepseekV4ForCausalLM"


def test_the_misreading_that_started_it_all():
    """0.5.13.post1 on nvidia/DeepSeek-V4-Flash-NVFP4, as it answers without the pull request."""
    found = judged(
        {"quantization": "fp8", "fp4_experts": True, "config": {"weight_block_size": [128, 128]}},
        "nvfp4",
        architecture=DEEPSEEK,
    )
    assert found["verdict"] == "misreads"
    assert found["experts"] == "mxfp4"
    assert found["fixed_by"] == "PR #25820 (in 0.5.14)"
    assert found["message"] == (
        "SGLang 0.5.13.post1 reads the experts as mxfp4 (quantization: fp8); they are nvfp4. "
        "Fixed by PR #25820 (in 0.5.14)"
    )


def test_the_same_checkpoint_read_by_a_build_with_the_pull_request():
    found = judged(
        {"quantization": "fp8", "nvfp4_moe": {"group_size": 16}},
        "nvfp4",
        architecture=DEEPSEEK,
        version="0.5.23",
    )
    assert (found["verdict"], found["experts"]) == ("agrees", "nvfp4")
    assert found["hybrid"] == {"experts": "nvfp4", "group_size": 16}


@pytest.mark.parametrize(
    ("answer", "actual", "declared"),
    [
        ({"quantization": None}, "bf16", None),
        ({"quantization": None}, "fp16", None),
        ({"quantization": "fp8", "config": {"weight_block_size": [128, 128]}}, "fp8-block", None),
        ({"quantization": "fp8", "config": {"weight_block_size": None}}, "fp8-tensor", None),
        ({"quantization": "fp8", "fp4_experts": True}, "mxfp4", None),
        ({"quantization": "modelopt_fp8"}, "fp8-tensor", None),
        ({"quantization": "modelopt_fp4"}, "nvfp4", None),
        ({"quantization": "modelopt_fp4"}, "w4a16-nvfp4", None),
        ({"quantization": "modelopt_mixed"}, "w4a16-nvfp4", None),
        ({"quantization": "compressed-tensors"}, "int4-group", None),
        ({"quantization": "mxfp4"}, "mxfp4", None),
        ({"quantization": "awq_marlin"}, "awq", None),
        ({"quantization": "gptq_marlin"}, "gptq", None),
        ({"quantization": "w8a8_int8"}, "int8", None),
        ({"quantization": "gguf"}, "gguf", None),
        ({"quantization": "bitsandbytes"}, "bnb-4bit", None),
        ({"quantization": "fp8", "config": {"weight_block_size": [128, 128]}}, "bf16", "bf16"),
    ],
)
def test_right_readings(answer, actual, declared):
    """The last row: experts that the config excludes are left alone by the build as well."""
    found = judged(answer, actual, declared=declared)
    assert found["verdict"] == "agrees", found["message"]


BLOCKS = {"weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("answer", "declared", "actual", "read", "fixed_by"),
    [
        ({"quantization": None}, "nvfp4", "nvfp4", "bf16", None),
        ({"quantization": "w4afp8"}, "nvfp4", "nvfp4", "w4afp8", "SGLang 0.5.15.post1"),
        ({"quantization": "fp8", "config": BLOCKS}, "fp8-block", "bf16", "fp8-block", None),
        ({"quantization": "compressed-tensors"}, "int4-group", "nvfp4", "int4-group", None),
    ],
)
def test_misreadings(answer, declared, actual, read, fixed_by):
    found = judged(answer, actual, declared=declared)
    assert found["verdict"] == "misreads"
    assert found["experts"] == read
    assert found["fixed_by"] == fixed_by


def test_a_build_that_holds_the_cure_is_not_sent_to_it():
    found = judged({"quantization": "w4afp8"}, "nvfp4", version="0.5.23")
    assert found["verdict"] == "misreads"
    assert found["fixed_by"] is None


def test_a_method_that_is_registered_with_cuda_only_is_no_refusal():
    """gpt-oss by 0.5.13.post1 on a CPU: "Unknown quantization method: mxfp4"."""
    answer = {
        "error": {"type": "ValueError", "message": "Unknown quantization method: mxfp4. Must be"},
        "quantization": "mxfp4",
    }
    found = judged(answer, "mxfp4")
    assert found["verdict"] == "unknown"
    assert "GPU" in found["message"]
    on_a_gpu = judged({**answer, "cuda": True}, "mxfp4")
    assert on_a_gpu["verdict"] == "cannot-load"
    unheard_of = judged({**answer, "quantization": "marvel"}, "mxfp4")
    assert unheard_of["verdict"] == "cannot-load"


def test_an_error_of_the_config_classes_is_told_in_one_line():
    error = {"type": "StrictDataclassError", "message": "kv_lora_rank: None\nis no integer"}
    found = judged({"error": error}, "bf16")
    assert found["verdict"] == "cannot-load"
    assert found["message"].endswith(
        "refuses its metadata: StrictDataclassError: kv_lora_rank: None"
    )


def test_code_that_the_checkpoint_brings_is_asked_for_by_name():
    error = {"type": "ValueError", "message": "… pass `trust_remote_code=True` …"}
    assert "trust-remote-code" in judged({"error": error}, "bf16")["message"]


def test_an_unknown_method_or_format_is_not_judged():
    assert judged({"quantization": "marvel"}, "nvfp4")["verdict"] == "unknown"
    assert judged({"quantization": "fp8"}, "unknown")["verdict"] == "unknown"


def test_a_dense_model_is_judged_by_its_linear_layers():
    found = judged({"quantization": "modelopt_fp4"}, "nvfp4", class_="dense_mlp")
    assert (found["verdict"], found["module_class"]) == ("agrees", "dense_mlp")
    assert found["experts"] is None


def test_an_unknown_architecture_is_mentioned():
    found = judged({"architecture_known": False}, "bf16", architecture="NewForCausalLM")
    assert found["architecture_known"] is False
    assert "no model class NewForCausalLM" in found["message"]


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_quant_algo": "auto"}, None),
        ({}, None),
    ],
)
def test_kv_cache(config, shown):
    found = judged({"quantization": "modelopt_fp4", "config": config}, "nvfp4")
    assert found["kv_cache_dtype"] == shown


# Through an interpreter.


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BRINGUP_RUN", str(tmp_path / "run"))


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    return fake_engine.make(tmp_path_factory.mktemp("engine") / "venv")


FORMAT = {
    "schema": "format/1",
    "status": "ok",
    "reason": None,
    "architecture": "Qwen3MoeForCausalLM",
    "classes": {"experts": {"format": "bf16", "group_size": None}},
    "declared": {"experts": {"format": "bf16"}},
}


def metadata(folder: Path) -> dict[str, Any]:
    return {
        "schema": "metadata/1",
        "status": "ok",
        "reason": None,
        "checkpoint": "small",
        "configs": str(folder),
        "remote_code": [],
    }


def test_the_document(python, tmp_path):
    build = engine.build(
        {"python": str(python)}, engine_name="mine", cuda=True, log=tmp_path / "engine.log"
    )
    folder = fake_engine.checkpoint(tmp_path / "c", architectures=["Qwen3MoeForCausalLM"])
    document = reading.read(metadata(folder), FORMAT, build, log=tmp_path / "reading.log")
    checked(document)
    assert (document["status"], document["verdict"]) == ("ok", "agrees")
    assert document["architecture_known"] is True
    assert f"reading {folder}" in (tmp_path / "reading.engine.log").read_text()

    broken = fake_engine.checkpoint(tmp_path / "d", raises="no such luck")
    document = reading.read(metadata(broken), FORMAT, build, log=tmp_path / "reading.log")
    checked(document)
    assert document["verdict"] == "cannot-load"
    assert "no such luck" in document["message"]


def test_nothing_is_read_by_an_engine_that_failed(tmp_path):
    failed = {
        "schema": "engine/1",
        "status": "failed",
        "reason": {"class": "x", "message": "no such patch", "evidence": [], "hint": None},
        "engine": "mine",
    }
    document = reading.read(metadata(tmp_path), FORMAT, failed, log=tmp_path / "reading.log")
    checked(document)
    assert document["status"] == "skipped"
    assert "no such patch" in document["reason"]["message"]


def config_only(tmp_path: Path) -> Path:
    return fake_engine.checkpoint(
        tmp_path / "alone",
        architectures=["Qwen3MoeForCausalLM"],
        num_hidden_layers=1,
        num_experts=8,
        hidden_size=64,
        moe_intermediate_size=64,
        torch_dtype="bfloat16",
    )


def test_alone_on_a_folder(python, tmp_path, capsys):
    code = command.main([str(config_only(tmp_path)), "--python", str(python), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert code == 0
    assert list(shown) == ["verdict", "quantization", "experts", "message", "fixed_by"]
    assert shown["verdict"] == "agrees"


@pytest.mark.parametrize(
    ("folder", "interpreter", "said"),
    [("no/such/folder", None, "no/such/folder"), (None, "/no/such/python", "/no/such/python")],
)
def test_bad_input_is_one_line_and_code_2(python, tmp_path, capsys, folder, interpreter, said):
    where = folder or str(config_only(tmp_path))
    code = command.main([where, "--python", interpreter or str(python)])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    assert said in captured.err
