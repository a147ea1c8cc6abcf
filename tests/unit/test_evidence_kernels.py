"""Which kernels ran: real traces (trimmed to what counts), and traces that are damaged.

The shares are worked out by hand from the sums of the traces' kernels; for int4-marlin, in µs of
3601.9: Marlin 742.8, moe_align 242.8, router 100.4 and moe_sum 92.6 are the experts' 1178.6.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bringup import artifact
from bringup.evidence import kernels_document, profile_request
from bringup.evidence.kernels import classified, sentence
from bringup.evidence.rules import table
from bringup.evidence.traces import Tally, Trace, read
from documents import checked, schema_of

FIXTURES = Path(__file__).with_name("fixtures") / "evidence"


def server(**asked: Any) -> artifact.Document:
    row = {"flag": "", "asked": None, "resolved": None, "used": None}
    unknown = {**row, "verdict": "unverified", "evidence": []}
    flags = {flag.replace("_", "-"): value for flag, value in asked.items()}
    return {
        "asked": flags,
        "resolved": flags,
        "backends": dict.fromkeys(("experts", "attention", "dense"), unknown),
    }


def kernels_of(traces: list[Path], planned: artifact.Document) -> artifact.Document:
    document = kernels_document(traces, planned, experiment="x", boot="b-1", concurrency=8)
    checked(document)
    return document


def recorded(name: str, planned: artifact.Document) -> artifact.Document:
    return kernels_of([FIXTURES / f"{name}.trace.json.gz"], planned)


def shares(document: artifact.Document) -> dict[str, float]:
    return {row["module"]: row["share"] for row in document["modules"]}


def verdicts(document: artifact.Document) -> dict[str, tuple[str, str]]:
    return {name: (row["used"], row["verdict"]) for name, row in document["backends"].items()}


def test_int4_with_marlin_asked_ran_marlin() -> None:
    document = recorded(
        "h200-0.5.16-int4-marlin", server(moe_runner_backend="marlin", attention_backend="triton")
    )
    assert document["time_us"] == pytest.approx(3601.9, abs=0.1)
    assert document["steps"] == {"DECODE bs=8": 20}
    assert document["devices"] == ["NVIDIA H200"]
    found = shares(document)
    assert found["experts"] == pytest.approx(1178.6 / 3601.9, abs=2e-4)
    assert found["attention"] == pytest.approx(710.0 / 3601.9, abs=2e-4)
    assert found["dense"] == pytest.approx(615.6 / 3601.9, abs=2e-4)
    assert found["norm"] == pytest.approx(362.3 / 3601.9, abs=2e-4)
    assert sum(found.values()) == pytest.approx(1, abs=1e-3)
    assert verdicts(document) == {
        "experts": ("marlin", "confirmed"),
        "attention": ("triton", "confirmed"),
        "dense": ("cublas", "confirmed"),
    }
    assert document["backends"]["experts"]["evidence"][0].startswith(
        "20.6 % in 160 × void device::marlin_moe::Marlin<"
    )


def test_the_same_trace_under_another_request_is_a_fallback() -> None:
    document = recorded("h200-0.5.16-int4-marlin", server(moe_runner_backend="cutlass"))
    assert verdicts(document)["experts"] == ("marlin", "fell-back")


def test_nvfp4_left_to_the_server_ran_marlin() -> None:
    document = recorded("h200-0.5.16-nvfp4-marlin", server(moe_runner_backend="auto"))
    assert verdicts(document)["experts"] == ("marlin", "confirmed")
    assert shares(document)["experts"] == pytest.approx(1196.0 / 3718.6, abs=2e-4)


def test_fp8_with_cutlass_asked_really_ran_cutlass_and_its_linears_triton() -> None:
    document = recorded(
        "h200-0.5.16-fp8-cutlass",
        server(moe_runner_backend="cutlass", fp8_gemm_backend="triton"),
    )
    assert verdicts(document)["experts"] == ("cutlass", "confirmed")
    assert verdicts(document)["dense"] == ("triton", "confirmed")
    assert shares(document)["experts"] == pytest.approx(1876.4 / 4836.1, abs=2e-4)
    assert shares(document)["dense"] == pytest.approx(1078.6 / 4836.1, abs=2e-4)


def test_deep_gemm_for_experts_is_not_taken_for_that_of_linear_layers() -> None:
    """Both are one kernel; what tells them apart is its GemmType (2: masked groups)."""
    document = recorded(
        "h200-0.5.16-fp8-deep_gemm",
        server(moe_runner_backend="deep_gemm", fp8_gemm_backend="triton"),
    )
    assert verdicts(document)["experts"] == ("deep_gemm", "confirmed")
    assert verdicts(document)["dense"] == ("triton", "confirmed")
    linear = "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 1u, (deep_gemm::GemmType)0, x>()"
    grouped = linear.replace("GemmType)0", "GemmType)1")
    trace = Trace(kernels={linear: Tally(1, 2.0), grouped: Tally(1, 1.0)})
    assert [kernel.module for kernel in classified(trace)] == ["dense", "experts"]


def test_bf16_with_triton() -> None:
    document = recorded("h200-0.5.16-bf16-triton", server(moe_runner_backend="triton_kernel"))
    assert verdicts(document)["experts"] == ("triton", "fell-back"), "another Triton kernel"
    assert shares(document)["experts"] == pytest.approx(763.4 / 3341.9, abs=2e-4)
    assert document["sentence"].endswith("the experts are not the bottleneck")
    assert "23 % experts (Triton, tensor cores)" in document["sentence"]


@pytest.mark.parametrize(
    "name", ["bf16-triton", "fp8-cutlass", "fp8-deep_gemm", "int4-marlin", "nvfp4-marlin"]
)
def test_nothing_of_a_recorded_decode_step_is_unexplained(name: str) -> None:
    assert recorded(f"h200-0.5.16-{name}", server())["unexplained_share"] == 0


def test_a_gpu_that_mostly_waits_is_told_of() -> None:
    document = recorded("h200-0.5.16-int4-marlin", server())
    assert document["busy_share"] < 0.1
    assert any("launching them" in note for note in document["notes"])
    assert "the GPU mostly waits" in document["sentence"]


def test_all_ranks_are_merged() -> None:
    path = FIXTURES / "h200-0.5.16-int4-marlin.trace.json.gz"
    one, two = kernels_of([path], server()), kernels_of([path, path], server())
    assert two["traces"] == 2
    assert two["time_us"] == pytest.approx(2 * one["time_us"], abs=0.2)
    assert two["steps"] == one["steps"]
    assert shares(two) == shares(one)
    assert two["busy_share"] == one["busy_share"]


def test_a_cpu_trace_is_told_apart_by_the_frames_around_its_operators() -> None:
    """One decode step of 4 layers and 8 requests.

    Dense products: 3 a layer (qkv, output, router) and the head; attention: one a request and
    layer; experts: two products of the two experts that all tokens chose, in each layer.
    """
    document = recorded("cpu-0.5.23-bf16", server(moe_runner_backend="marlin"))
    assert document["source"] == "cpu-operators"
    launches = {
        (row["module"], row["name"]): row["launches"]
        for row in document["kernels"]
        if row["role"] == "gemm"
    }
    assert launches["dense", "aten::mm"] == 13
    assert launches["attention", "aten::_scaled_dot_product_flash_attention_for_cpu"] == 32
    assert launches["experts", "aten::mm"] == 16
    assert verdicts(document)["experts"] == ("torch-native", "fell-back")
    assert document["unexplained_share"] == 0
    assert all(set(row["units"]) == {"cpu"} for row in document["modules"])


def event(name: str, us: float, *, ts: float = 0.0, cat: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": us}


def trace_of(folder: Path, *events: dict[str, Any], head: str = "{") -> Path:
    path = folder / "rank.json"
    body = ",\n".join(json.dumps(each) for each in events)
    path.write_text(f'{head}"traceEvents": [\n{body}\n]}}\n')
    return path


def test_an_operator_keeps_only_its_own_time(tmp_path: Path) -> None:
    path = trace_of(
        tmp_path,
        event("aten::linear", 10, ts=0, cat="cpu_op"),
        event("aten::t", 1, ts=1, cat="cpu_op"),
        event("aten::mm", 7, ts=2, cat="cpu_op"),
        event("aten::mm", 5, ts=20, cat="cpu_op"),
    )
    own = {name: tally for (name, _), tally in read(path).operators.items()}
    assert own == {
        "aten::linear": Tally(1, 2),
        "aten::t": Tally(1, 1),
        "aten::mm": Tally(2, 12),
    }


def test_without_frames_matrix_products_on_a_cpu_stay_unexplained(tmp_path: Path) -> None:
    document = kernels_of([trace_of(tmp_path, event("aten::mm", 7, cat="cpu_op"))], server())
    assert document["unexplained_share"] == 1
    assert any("cannot be told apart" in note for note in document["notes"])
    assert verdicts(document)["experts"] == (None, "unverified")


def test_names_that_no_rule_knows_are_shown_as_unexplained(tmp_path: Path) -> None:
    path = trace_of(tmp_path, event("kernel_of_tomorrow", 75), event("fused_moe_kernel", 25))
    document = kernels_of([path], server())
    assert document["unexplained_share"] == 0.75
    assert document["sentence"].startswith("75 % unexplained")
    assert "bottleneck" not in document["sentence"]


def test_a_kernel_of_sglangs_own_neither_keeps_a_promise_nor_breaks_it(tmp_path: Path) -> None:
    path = trace_of(tmp_path, event("void sgl::sparse_mla_decode<1>(int)", 9))
    document = kernels_of([path], server(attention_backend="triton"))
    assert shares(document) == {"attention": 1}
    assert verdicts(document)["attention"] == (None, "unverified")


KNOWN = {
    "bmm_E4m3_E2m1E2m1_Fp32_t128x8x512_sm100f": ("experts", "flashinfer_trtllm", None),
    "void deep_gemm::sm90_fp8_m_grouped_gemm_masked_1d2d_impl<0>": ("experts", "deep_gemm", "fp8"),
    "_mxfp4_slot_gemv_kernel": ("experts", None, "mxfp4"),
    "void gptq_marlin::Marlin<__nv_bfloat16, 4>": ("dense", "marlin", None),
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<>>>": (
        "attention",
        "fa3",
        None,
    ),
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<8u>": ("attention", "flashinfer", None),
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)": (
        "communication",
        None,
        None,
    ),
    "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 4>": ("communication", None, None),
    "triton_poi_fused_add_0": ("other", None, None),
    "_mxfp8_grouped_gemm_kernel": ("experts", "triton", None),
    "_sparse_mla_split_k_kernel": ("attention", "triton", None),
    "_fused_moe_preprocess_kernel": ("experts", None, None),
}


@pytest.mark.parametrize(("name", "expected"), KNOWN.items(), ids=range(len(KNOWN)))
def test_kernels_that_no_recording_holds(name: str, expected: tuple[Any, ...]) -> None:
    (kernel,) = classified(Trace(kernels={name: Tally(1, 1.0)}))
    rule = kernel.rule
    assert (kernel.module, rule.get("backend"), rule.get("format")) == expected


def test_the_sentence_of_two_gpus_that_wait_for_each_other() -> None:
    """As two H200s were seen with a small model: 82 % of the time in NCCL's all-reduce."""
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    found = classified(Trace(kernels={name: Tally(9, 82.0), "fused_moe_kernel": Tally(1, 18.0)}))
    assert sentence(found, busy=0.9).startswith("82 % communication (NCCL), 18 % experts (Triton")


def test_the_sentence_of_a_server_whose_attention_is_the_bottleneck() -> None:
    found = classified(
        Trace(
            kernels={
                "_fwd_kernel_stage2": Tally(1, 56.0),
                "void device::marlin_moe::Marlin<x>": Tally(1, 21.0),
                "nvjet_sm90_tst_8x64": Tally(1, 20.0),
                "ncclDevKernel_AllReduce": Tally(1, 3.0),
            }
        )
    )
    assert sentence(found, busy=0.9) == (
        "56 % attention (Triton, CUDA cores), 21 % experts (Marlin, tensor cores), "
        "20 % dense layers (cuBLAS, tensor cores): the experts are not the bottleneck"
    )


def test_a_bottleneck_is_named() -> None:
    found = classified(Trace(kernels={"fused_moe_kernel": Tally(1, 56.0)}))
    assert sentence(found, busy=0.9).endswith("the experts are the bottleneck")


# Damage.


def test_a_trace_that_is_cut_off_counts_up_to_there(tmp_path: Path) -> None:
    path = trace_of(tmp_path, event("fused_moe_kernel", 25), event("fused_moe_kernel", 25))
    path.write_bytes(path.read_bytes()[:-40])
    document = kernels_of([path], server())
    assert document["status"] == "ok"
    assert document["time_us"] == 25
    assert any("cut off" in note for note in document["notes"])


def test_a_gzip_stream_that_is_cut_off_counts_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "rank.json.gz"
    whole = (FIXTURES / "h200-0.5.16-int4-marlin.trace.json.gz").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    document = kernels_of([path], server())
    assert 0 < document["time_us"] < 3601
    assert any("damaged gzip" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty, or not a trace"),
        ("{}", "empty, or not a trace"),
        ('{"traceEvents": []}', "no kernels and no operators"),
        ('{"traceEvents": [', "does not end"),
        ("PNG not a trace at all", "empty, or not a trace"),
        (
            '{"traceEvents": [7, "x", null, {"ph": "X"}, {"ph": "X", "name": 3, "dur": "?"}]}',
            "no ker",
        ),
    ],
)
def test_a_trace_that_shows_nothing_is_said_to_show_nothing(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "rank.json"
    path.write_text(content)
    document = kernels_of([path], server(moe_runner_backend="marlin"))
    assert document["status"] == "failed"
    assert document["reason"]["class"] == "no-kernels"
    assert words in document["reason"]["message"]
    assert verdicts(document)["experts"] == (None, "unverified")


def test_what_the_log_proved_stands_where_the_trace_shows_nothing(tmp_path: Path) -> None:
    planned = server(moe_runner_backend="cutlass")
    planned["backends"]["experts"] = {
        "flag": "moe-runner-backend",
        "asked": "cutlass",
        "resolved": "cutlass",
        "used": "marlin",
        "verdict": "fell-back",
        "evidence": ["Using CompressedTensorsWNA16MarlinMoEMethod"],
    }
    document = kernels_of([trace_of(tmp_path, event("rmsnorm", 1))], planned)
    assert verdicts(document)["experts"] == ("marlin", "fell-back")


def test_other_spellings_of_the_format(tmp_path: Path) -> None:
    events = [event("fused_moe_kernel", 25), event("Memcpy DtoD", 4, cat="gpu_memcpy")]
    compact = tmp_path / "compact.json"
    compact.write_text(json.dumps({"traceEvents": events}, separators=(",", ":")))
    bare = tmp_path / "bare.json.gz"
    bare.write_bytes(gzip.compress(json.dumps(events).encode()))
    for path in (compact, bare):
        trace = read(path)
        assert trace.defects == []
        assert trace.kernels == {"fused_moe_kernel": Tally(1, 25)}
        assert trace.copies == {"Memcpy DtoD": Tally(1, 4)}


def test_events_across_blocks_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace_of(tmp_path, *[event(f"kernel·{number}", 1.5) for number in range(50)])
    monkeypatch.setattr("bringup.evidence.traces.BLOCK", 17)
    trace = read(path)
    assert trace.defects == []
    assert len(trace.kernels) == 50


def test_a_defect_in_the_middle_keeps_what_stands_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bringup.evidence.traces.LARGEST_EVENT", 1000)
    path = tmp_path / "rank.json"
    good = json.dumps(event("fused_moe_kernel", 25))
    path.write_text('{"traceEvents": [' + good + ', {"ph": "X", "dur": NaNN},' + (good + ",") * 50)
    trace = read(path)
    assert trace.kernels == {"fused_moe_kernel": Tally(1, 25)}
    assert "no JSON at character" in trace.defects[0]


def test_the_profile_request() -> None:
    on_gpu = profile_request("/profiles", on_gpu=True)
    assert on_gpu["output_dir"] == "/profiles"
    assert on_gpu["num_steps"] == 20
    assert on_gpu["activities"] == ["CPU", "GPU"]
    on_cpu = profile_request("/profiles", on_gpu=False)
    assert (on_cpu["activities"], on_cpu["num_steps"]) == (["CPU"], 5)


def test_every_kernel_rule_has_a_source_and_fits_the_schema() -> None:
    properties = schema_of("kernels")["properties"]
    modules = properties["modules"]["items"]["properties"]["module"]["enum"]
    units = properties["kernels"]["items"]["properties"]["unit"]["enum"]
    kernels = table("kernels")
    for rule in [*kernels["kernels"], *kernels["operators"]]:
        assert rule["source"]
        assert rule["module"] in modules
        assert rule["role"] in ("gemm", "help")
        assert rule.get("unit") in units
        assert rule["family"] in kernels["spelled"]
    for rule in kernels["frames"]:
        assert rule["source"]
        assert rule["module"] in modules


def test_every_promise_can_be_kept_by_some_kernel() -> None:
    kernels = table("kernels")
    rows = [*kernels["kernels"], *kernels["operators"]]
    used = {rule.get("backend") or rule["family"] for rule in rows} | {"cutedsl"}
    for module, promises in kernels["runs"].items():
        for name, keepers in promises.items():
            assert set(keepers) <= used, (module, name)
