"""``server.json``: asked, resolved and proven, from what real servers said (trimmed)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bringup import artifact
from bringup.evidence import diagnose, failed_document, server_document
from bringup.evidence.rules import table
from bringup.evidence.verdicts import verdict
from documents import checked

FIXTURES = Path(__file__).with_name("fixtures") / "evidence"


IMPORTS = {
    "python": "{cache}/envs/x/bin/python",
    "pythonpath": [],
    "file": "{cache}/envs/x/lib/sglang/__init__.py",
    "tree": "0" * 64,
    "markers": [],
}


def plan(**flags: Any) -> artifact.Document:
    rows = [
        {"flag": flag.replace("_", "-"), "value": value, "by": "user", "why": ""}
        for flag, value in flags.items()
    ]
    return {"flags": rows, "env": {"SGLANG_ENABLE_JIT_DEEPGEMM": "0", "HOME": "/home/somebody"}}


def boot_of(
    name: str,
    planned: artifact.Document,
    info: dict[str, Any] | None = None,
    log: Path | None = None,
) -> artifact.Document:
    path = FIXTURES / f"{name}.server_info.json"
    document = server_document(
        experiment="int4--cutlass",
        plan=planned,
        boot="b-1",
        argv=["-m", "sglang.launch_server", "--api-key", "hunter2hunter2"],
        gpus=["GPU-0"],
        load_s=71.44,
        server_info=json.loads(path.read_text()) if info is None else info,
        model_info={"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
        log=FIXTURES / f"{name}.log" if log is None else log,
        live={"pid": 4},
        imports=IMPORTS,
    )
    checked(document)
    return document


def shown(document: artifact.Document) -> dict[str, tuple[Any, ...]]:
    return {
        module: (row["asked"], row["resolved"], row["used"], row["verdict"])
        for module, row in document["backends"].items()
    }


def test_int4_with_cutlass_asked_ran_marlin_and_the_log_says_so() -> None:
    document = boot_of("h200-0.5.16-int4-cutlass", plan(moe_runner_backend="cutlass"))
    assert document["status"] == "ok"
    assert shown(document)["experts"] == ("cutlass", "cutlass", "marlin", "fell-back")
    (line,) = document["backends"]["experts"]["evidence"]
    assert line.endswith("Using CompressedTensorsWNA16MarlinMoEMethod")


def test_fp8_with_triton_linears_is_confirmed_and_its_experts_are_not_rounded_up() -> None:
    document = boot_of(
        "h200-0.5.16-fp8-cutlass", plan(moe_runner_backend="cutlass", fp8_gemm_backend="triton")
    )
    assert shown(document)["experts"] == ("cutlass", "cutlass", None, "unverified")
    assert shown(document)["dense"] == ("triton", "triton", "triton", "confirmed")
    assert [warning["class"] for warning in document["warnings"]] == ["untuned-kernels"]


def test_bf16_with_triton() -> None:
    document = boot_of("h200-0.5.16-bf16-triton", plan(moe_runner_backend="triton"))
    assert shown(document)["experts"] == ("triton", "triton", "triton", "confirmed")


def test_bf16_with_marlin_asked_ran_triton() -> None:
    document = boot_of("h200-0.5.16-bf16-marlin", plan(moe_runner_backend="marlin"), info={})
    assert shown(document)["experts"] == ("marlin", None, "triton", "fell-back")


def test_nvfp4_with_marlin_has_no_line_of_its_own_and_so_stays_unverified() -> None:
    document = boot_of("h200-0.5.16-nvfp4-marlin", plan(moe_runner_backend="marlin"))
    assert shown(document)["experts"] == ("marlin", "marlin", None, "unverified")
    assert document["model"]["quantization"] == "modelopt_fp4"


def test_the_figures_of_a_boot() -> None:
    document = boot_of("h200-0.5.16-int4-cutlass", plan())
    assert document["memory"] == {
        "weights_gib": 0.01,
        "kv_gib": 0.13,
        "graphs_gib": 0.04,
        "available_gib": 137.86,
    }
    assert document["kv_tokens"] == 65536
    assert document["graph_sizes"] == [1, 2, 4, 8, 12, 16]
    assert document["graph_capture_s"] == 2.16
    assert document["load_s"] == 71.4
    assert document["versions"] == {"sglang": "0.5.16"}


PACKAGES = {
    "torch": "2.14.1",
    "triton": "3.8.0",
    "nvidia-nccl-cu13": "2.30.7",
    "sglang-kernel": "0.4.10",
    "flashinfer-python": "0.7.2",
    "flash-attn-4": "4.0.0b36",
    "torchcodec": "0.17.0",
    "requests": "2.33.0",
}


def test_versions_of_all_that_decides_which_kernels_run(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("[2026-06-17 20:48:01] The server is fired up and ready to roll!\n")
    known = {"cuda": "13.0", "driver": "580.95.05", "driver_cuda": "13.0", "tree": None}
    facts: dict[str, Any] = {
        "experiment": "x",
        "plan": plan(),
        "boot": "b-1",
        "argv": [],
        "gpus": [],
        "log": log,
        "versions": known,
        "packages": PACKAGES,
    }
    started = checked(
        server_document(
            **facts,
            load_s=1,
            server_info={"version": "0.5.23"},
            model_info={},
            live={},
            imports=IMPORTS,
        )
    )
    failed = checked(failed_document(**facts, reason=diagnose(log)))
    counting = {name: PACKAGES[name] for name in PACKAGES if name not in ("torchcodec", "requests")}
    assert started["versions"] == {"sglang": "0.5.23", **known, **counting}
    assert failed["versions"] == {"sglang": None, **known, **counting}


def test_a_server_on_a_cpu() -> None:
    document = boot_of("cpu-0.5.23-bf16", plan(max_total_tokens=8192, max_running_requests=16))
    assert document["differences"] == []
    assert document["kv_tokens"] == 8192
    assert document["graph_sizes"] == []
    assert document["resolved"]["attention-backend"] == "torch_native"
    assert [warning["class"] for warning in document["warnings"]] == ["no-amx"]


def test_a_changed_argument_is_explained_by_the_line_that_names_it_or_flagged(
    tmp_path: Path,
) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "[2026-06-17 20:48:01] chunked_prefill_size is adjusted to 2048 for dp attention\n"
        "[2026-06-17 20:48:01] The server is fired up and ready to roll!\n"
    )
    document = boot_of(
        "none",
        plan(
            chunked_prefill_size=8192,
            page_size=64,
            tp=4,
            mem_fraction_static="0.70",
            schedule_policy="lpm",
            port="{port}",
            enable_metrics=True,
        ),
        info={
            "chunked_prefill_size": 2048,
            "page_size": 256,
            "tp_size": 4,
            "mem_fraction_static": 0.7,
            "schedule_policy": "fcfs",
            "port": 30000,
            "enable_metrics": True,
        },
        log=log,
    )
    by_field = {row["field"]: row for row in document["differences"]}
    assert set(by_field) == {"chunked-prefill-size", "page-size", "schedule-policy"}
    assert "adjusted to 2048" in by_field["chunked-prefill-size"]["why"]
    assert by_field["page-size"]["why"] is None


def test_missing_weights_fail_a_server_that_started(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "[2026-06-17 20:48:01] layers.0.ffn.experts.0.w1.weight_scale_2 not found in params_dict.\n"
        "[2026-06-17 20:48:01] The server is fired up and ready to roll!\n"
    )
    document = boot_of("none", plan(), info={}, log=log)
    assert document["status"] == "failed"
    assert document["reason"]["class"] == "weights-not-initialised"


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"internal_states": []},
        {"internal_states": "none"},
        {"internal_states": [{"memory_usage": None}], "startup_time": 3, "version": None},
        {"internal_states": [{"memory_usage": {"weight": "?", "graph": {"decode": None}}}]},
    ],
)
def test_fields_that_are_missing_or_changed_are_null(info: dict[str, Any]) -> None:
    document = boot_of("h200-0.5.16-int4-cutlass", plan(moe_runner_backend="cutlass"), info=info)
    assert document["resolved"]["moe-runner-backend"] is None
    assert document["differences"] == []
    assert document["kv_tokens"] == 65536, "the log knows it too"


def test_fields_by_their_older_names(tmp_path: Path) -> None:
    """0.5.12 and 0.5.13 call them so; the scheduler's own view counts before the front end's."""
    info = {
        "nsa_prefill_backend": "flashmla_sparse",
        "cuda_graph_max_bs": 16,
        "moe_runner_backend": "auto",
        "internal_states": [{"moe_runner_backend": "marlin", "cuda_graph_max_bs": 8}],
        "a_field_of_tomorrow": {"x": 1},
    }
    document = boot_of("h200-0.5.16-int4-cutlass", plan(cuda_graph_max_bs=16), info=info)
    resolved = document["resolved"]
    assert resolved["dsa-prefill-backend"] == "flashmla_sparse"
    assert resolved["moe-runner-backend"] == "marlin"
    assert resolved["cuda-graph-max-bs-decode"] == 8
    (difference,) = document["differences"]
    assert (difference["field"], difference["asked"], difference["resolved"]) == (
        "cuda-graph-max-bs-decode",
        16,
        8,
    )


def test_secrets_and_what_does_not_matter_are_not_written() -> None:
    document = boot_of("cpu-0.5.23-bf16", plan())
    assert "hunter2" not in json.dumps(document)
    assert document["environment"] == {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}


def test_a_failed_start_keeps_what_the_log_told(tmp_path: Path) -> None:
    log = FIXTURES / "h200-0.5.16-fp8-marlin.log"
    document = failed_document(
        experiment="fp8--marlin",
        plan=plan(moe_runner_backend="marlin"),
        boot="b-2",
        argv=[],
        gpus=[],
        reason=diagnose(log),
        log=log,
    )
    checked(document)
    assert document["status"] == "failed"
    assert document["kv_tokens"] == 65536
    artifact.write(tmp_path / "server.json", document)


def test_a_skipped_launch_fits_the_schema() -> None:
    refused = artifact.document("plan/1", "refused", artifact.reason("no-gpu", "no GPU here"))
    checked(artifact.skipped("server/1", refused, experiment="x"))


@pytest.mark.parametrize(
    ("asked", "resolved", "used", "expected"),
    [
        ("marlin", "marlin", "marlin", "confirmed"),
        ("cutlass", "cutlass", "marlin", "fell-back"),
        ("auto", "auto", "marlin", "confirmed"),
        (None, "flashinfer_trtllm", "triton", "fell-back"),
        ("triton_kernel", "triton_kernel", "triton", "fell-back"),
        ("marlin", "marlin", None, "unverified"),
        ("a_backend_of_tomorrow", None, "marlin", "unverified"),
    ],
)
def test_verdicts(asked: str | None, resolved: str | None, used: str | None, expected: str) -> None:
    assert verdict("experts", asked, resolved, used) == expected


def test_every_resolved_field_says_how_its_name_is_known() -> None:
    for row in table("resolved_fields")["fields"]:
        for known in row["names"].values():
            assert set(known) <= {"recorded", "source"}
            assert known


def test_every_log_rule_has_a_source() -> None:
    for rows in table("log_rules").values():
        for row in rows:
            assert row["source"]
            assert row["versions"]
