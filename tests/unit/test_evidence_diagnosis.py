"""Why a server failed: real logs (trimmed), and the classes that no recording holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup.evidence import diagnose, failure
from bringup.evidence.diagnosis import MOST_EVIDENCE
from bringup.evidence.rules import table

FIXTURES = Path(__file__).with_name("fixtures") / "evidence"
NVFP4_REFUSAL = "Current platform does not support NVFP4 quantization"

RECORDED = {
    "h200-0.5.16-nvfp4-cutlass": ("unsupported", NVFP4_REFUSAL),
    "h200-0.5.16-nvfp4-flashinfer_cutedsl": ("config-rejected", "Invalid quantization 'None'"),
    "h200-0.5.16-mxfp4-auto": ("unsupported", "For Fused MoE layers, only"),
    "h200-0.5.16-fp8-cutlass-refused": ("unsupported", "deprecated on this hardware"),
    "h200-0.5.16-fp8-marlin": ("unsupported", "has no attribute 'runner'"),
    "h200-0.5.16-bf16-flashinfer_trtllm": ("kernel-download", "Failed to get checksums.txt"),
    "h200-0.5.16-fp8-deep_gemm-port": ("port-in-use", "address already in use"),
    "h200-0.5.16-nvfp4-marlin-fa3": ("missing-kernel", "Can not import FA3"),
    "h200-0.5.16-int4-marlin-stuck": ("unfinished", "during graph-capture"),
    "cpu-0.5.23-fp8": ("unsupported", "AMX"),
    "cpu-0.5.23-int4": ("compile-failure", "Failed to build JIT module"),
    "cpu-0.5.23-nvfp4-marlin": ("unsupported", "Found no NVIDIA driver"),
    "cpu-0.5.23-mxfp4": ("unsupported", "0 active drivers"),
}


@pytest.mark.parametrize(("name", "expected"), RECORDED.items(), ids=RECORDED)
def test_recorded_failures(name: str, expected: tuple[str, str]) -> None:
    reason = diagnose(FIXTURES / f"{name}.log")
    class_, words = expected
    assert reason["class"] == class_
    assert words in reason["message"]
    assert reason["hint"]
    assert 0 < len(reason["evidence"]) <= MOST_EVIDENCE
    if class_ != "unfinished":
        assert any(words in line for line in reason["evidence"])


@pytest.mark.parametrize(
    "name",
    [
        "h200-0.5.16-int4-cutlass",
        "h200-0.5.16-fp8-cutlass",
        "h200-0.5.16-bf16-marlin",
        "cpu-0.5.23-bf16",
    ],
)
def test_a_server_that_became_ready_has_no_failure(name: str) -> None:
    assert failure(FIXTURES / f"{name}.log") is None


START = [
    "[2026-06-17 20:48:01] Load weight begin. avail mem=94.00 GB",
    "[2026-06-17 20:49:01] Load weight end. elapsed=60.00 s, mem usage=39.20 GB.",
    "[2026-06-17 20:49:02] Capture target decode CUDA graph begin. backend=full, bs=[1, 2]",
    "[2026-06-17 20:49:30] Capture target decode CUDA graph end. elapsed=28.00 s",
    "[2026-06-17 20:49:31] The server is fired up and ready to roll!",
]
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def log_of(folder: Path, *rows: str) -> Path:
    log = folder / "server.log"
    log.write_text("\n".join(rows) + "\n")
    return log


@pytest.mark.parametrize(
    ("progress", "class_", "remedy"),
    [
        (1, "oom-weights", "use more GPUs"),
        (2, "oom-kv-pool", "raise --mem-fraction-static"),
        (3, "oom-graph-capture", "lower --mem-fraction-static"),
        (5, "oom-serving", "--max-running-requests"),
    ],
)
def test_the_same_words_have_opposite_remedies_at_another_stage(
    tmp_path: Path, progress: int, class_: str, remedy: str
) -> None:
    reason = diagnose(log_of(tmp_path, *START[:progress], OUT_OF_MEMORY))
    assert reason["class"] == class_
    assert remedy in reason["hint"]


@pytest.mark.parametrize(
    ("line", "class_"),
    [
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "oom-kv-pool",
        ),
        (
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "illegal-memory-access",
        ),
        (
            "tvm.error.InternalError: runner.cu:286 Error occurred when running GEMM",
            "kernel-error",
        ),
        ("RuntimeError: size mismatch for model.layers.0.mlp.w1.weight", "shape-mismatch"),
        ("AssertionError: param_data.shape == loaded_weight.shape", "shape-mismatch"),
        ("AssertionError: tp_size must be even", "assertion"),
        (
            "launch_server.py: error: unrecognized arguments: --moe-runer-backend marlin",
            "config-rejected",
        ),
        (
            "launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match",
            "config-rejected",
        ),
        (
            "ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
            "architecture-unknown",
        ),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp", "nccl"),
        (
            "Exception: Capture cuda graph failed: custom_all_reduce.cuh:455 'invalid argument'",
            "custom-all-reduce",
        ),
        ("Fatal Python error: Segmentation fault", "crashed-by-signal"),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "unsupported",
        ),
        ("EOFError: marshal data too short", "damaged-environment"),
        ("ImportError: /envs/x/torch/lib/libc10.so: file too short", "damaged-environment"),
        ("ninja: build stopped: subcommand failed.", "compile-failure"),
        ("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "watchdog"),
        ("KeyError: 'model.layers.0.foo'", "exception"),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", "oom-host"),
        (
            "FP8 block scale MoE: gemm1_weights must be fp8",
            "unsupported",
        ),
    ],
)
def test_classes_that_no_recording_holds(tmp_path: Path, line: str, class_: str) -> None:
    assert diagnose(log_of(tmp_path, START[0], line))["class"] == class_


@pytest.mark.parametrize(
    "line",
    [
        "layers.0.ffn.experts.0.w1.weight_scale not found in params_dict.",
        "Some weights are not initialized from checkpoints: {'model.layers.0.w13_scale'}",
    ],
)
def test_missing_weights_are_a_failure_although_the_server_is_ready(
    tmp_path: Path, line: str
) -> None:
    log = log_of(tmp_path, START[0], f"[2026-06-17 20:48:30 TP0] {line}", *START[1:])
    reason = failure(log)
    assert reason is not None
    assert reason["class"] == "weights-not-initialised"


def test_the_first_cause_wins_over_what_the_other_ranks_say_of_it(tmp_path: Path) -> None:
    reason = diagnose(
        log_of(
            tmp_path,
            *START[:3],
            "[2026-06-17 20:49:05 TP1] Watchdog caught collective operation timeout",
            "[2026-06-17 20:49:06 TP3] Scheduler hit an exception: Traceback",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "[2026-06-17 20:49:07 TP0] Scheduler hit an exception: Traceback",
            "torch.distributed.DistBackendError: NCCL error: remote process exited",
            "[2026-06-17 20:49:08] Received sigquit from a child process.",
        )
    )
    assert reason["class"] == "illegal-memory-access"


def test_the_compiler_behind_an_exception_explains_it(tmp_path: Path) -> None:
    reason = diagnose(
        log_of(
            tmp_path, START[0], "SystemError: the build went wrong", "nvcc fatal   : no such option"
        )
    )
    assert reason["class"] == "compile-failure"


def test_a_crash_far_behind_another_one_is_not_the_first_cause(tmp_path: Path) -> None:
    chatter = [f"[2026-06-17 20:50:00] step {number}" for number in range(200)]
    reason = diagnose(
        log_of(
            tmp_path,
            "KeyError: 'first'",
            *chatter,
            "RuntimeError: NCCL error: unhandled system error",
        )
    )
    assert reason["class"] == "exception"


def test_words_that_are_only_quoted_are_no_failure(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        "[2026-06-17 20:48:00] server_args=ServerArgs(chat_template='CUDA out of memory')",
        "[2026-06-17 20:48:00] Ignore import error when loading x: undefined symbol",
        *START,
    )
    assert failure(log) is None
    assert diagnose(log)["class"] == "stopped"


def test_a_ready_server_that_dies_is_a_failure(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        *START,
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "[2026-06-17 20:59:08] Received sigquit from a child process.",
    )
    reason = failure(log)
    assert reason is not None
    assert reason["class"] == "illegal-memory-access"


def test_what_a_server_says_while_it_is_being_stopped_is_no_cause(tmp_path: Path) -> None:
    stopping = [
        "[2026-06-17 20:59:08] SIGTERM received. signum=None frame=None. Draining requests.",
        "[2026-06-17 20:59:09] Subprocess scheduler_0 (pid=18711) crashed with exit code -15.",
        "asyncio.exceptions.CancelledError",
    ]
    assert failure(log_of(tmp_path, *START, *stopping)) is None
    slow = diagnose(log_of(tmp_path, *START[:3], *stopping), fate="timeout-with-progress")
    assert slow["class"] == "timeout-with-progress"


@pytest.mark.parametrize(
    ("how", "class_"),
    [
        ({"exit_code": -9}, "killed"),
        ({"exit_code": 143}, "killed"),
        ({"exit_code": -11}, "crashed-by-signal"),
        ({"exit_code": 1}, "unfinished"),
        ({"fate": "timeout-with-progress"}, "timeout-with-progress"),
        ({"fate": "timeout-without-progress"}, "timeout-without-progress"),
        ({"fate": "no-answer", "ready": True}, "no-answer"),
    ],
)
def test_how_it_ended_decides_where_the_log_names_no_cause(
    tmp_path: Path, how: dict, class_: str
) -> None:
    reason = diagnose(log_of(tmp_path, *START[:3]), **how)
    assert reason["class"] == class_
    assert "graph-capture" in reason["message"]


def test_what_is_seen_from_outside_counts_where_the_log_can_not_know_better(tmp_path: Path) -> None:
    log = log_of(
        tmp_path, *START[:2], "RuntimeError: CUDA error: no kernel image is available for execution"
    )
    answered = diagnose(log, fate="bad-answer", said="its first generation failed: 500")
    assert answered["class"] == "unsupported"
    other = diagnose(log, fate="not-as-planned", said="/model_info says model_path is '/other'")
    assert other["class"] == "not-as-planned"
    assert "model_path is '/other'" in other["message"]
    assert other["evidence"]


FLOOD = [f"[2026-06-17 21:00:{number % 60:02}] chatter {number}" for number in range(30)]
CUT = "[bringup 123456789 bytes were dropped here: too much output]"


def test_a_server_known_to_be_ready_is_so_whatever_is_left_of_its_log(tmp_path: Path) -> None:
    survived = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    log = log_of(tmp_path, *START[:2], survived, CUT, *FLOOD)
    assert failure(log) is not None
    assert failure(log, ready=True) is None
    assert diagnose(log, ready=True, exit_code=1)["class"] == "stopped"
    died = log_of(tmp_path, *START[:2], survived, CUT, *FLOOD, OUT_OF_MEMORY)
    assert diagnose(died, ready=True)["class"] == "oom-serving"
    cut_short = log_of(tmp_path, *START[:2], survived)  # the disk was full
    assert failure(cut_short, ready=True) is None
    assert diagnose(cut_short, ready=True, exit_code=-9)["class"] == "killed"


def test_evidence_is_short_and_without_secrets(tmp_path: Path) -> None:
    noise = [
        f"[2026-06-17 20:48:02] line {number} --api-key hunter2hunter2" for number in range(500)
    ]
    reason = diagnose(log_of(tmp_path, *noise, "X" * 100_000, OUT_OF_MEMORY, *noise))
    assert len(reason["evidence"]) <= MOST_EVIDENCE
    assert sum(map(len, reason["evidence"])) < 10_000
    assert "hunter2" not in str(reason)


def test_an_empty_log_is_an_answer_too(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.touch()
    reason = diagnose(log)
    assert reason["class"] == "unfinished"
    assert reason["evidence"] == []


def test_every_rule_names_a_class_a_source_and_versions() -> None:
    failures = table("failures")
    known = {
        "pattern",
        "class",
        "by_stage",
        "strength",
        "healthy",
        "meaning",
        "hint",
        "versions",
        "source",
    }
    for rule in failures["rules"]:
        assert set(rule) <= known, rule
        assert rule["source"], rule
        assert rule["versions"], rule
        classes = rule["by_stage"].values() if "by_stage" in rule else [rule["class"]]
        assert set(classes) <= set(failures["classes"]), rule
        assert rule.get("strength", "cause") in ("cause", "general", "echo")
    for class_ in failures["classes"].values():
        assert class_["meaning"]
        assert class_["hint"]
