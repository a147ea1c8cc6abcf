"""Every recorded boot gets the right class and verdict.  Skipped where the recordings are not.

What came of each boot was noted when it was recorded: whether it became ready, the error, and for
those with a trace the kernels.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

from bringup.evidence import examine
from bringup.evidence.rules import table
from bringup.paths import PROJECT

RECORDINGS = PROJECT.parent / "shared/recordings"
H200, CPU = "h200-sglang-0.5.16", "cpu-sglang-0.5.23"

pytestmark = pytest.mark.skipif(
    not RECORDINGS.is_dir(), reason=f"no recorded boots in {RECORDINGS}"
)

OUTCOMES = {
    f"{CPU}/cpu-bf16": None,
    f"{CPU}/cpu-bf16-marlin": None,
    f"{CPU}/cpu-bf16-triton": None,
    f"{CPU}/cpu-fp8": "unsupported",
    f"{CPU}/cpu-int4": "compile-failure",
    f"{CPU}/cpu-int4-marlin": "compile-failure",
    f"{CPU}/cpu-mixed": "unsupported",
    f"{CPU}/cpu-mxfp4": "unsupported",
    f"{CPU}/cpu-nvfp4": "unsupported",
    f"{CPU}/cpu-nvfp4-cutlass": "unsupported",
    f"{CPU}/cpu-nvfp4-marlin": "unsupported",
    f"{CPU}/cpu-nvfp4-triton": "unsupported",
    f"{H200}/run-1/bf16-triton": None,
    f"{H200}/run-1/fp8-cutlass": "unsupported",
    f"{H200}/run-1/fp8-deep_gemm": None,
    f"{H200}/run-1/fp8-triton": None,
    f"{H200}/run-1/int4-marlin": "unfinished",
    f"{H200}/run-1/mixed-marlin": "unfinished",
    f"{H200}/run-1/nvfp4-marlin": "unfinished",
    f"{H200}/run-2/bf16-auto": None,
    f"{H200}/run-2/bf16-flashinfer_trtllm": "kernel-download",
    f"{H200}/run-2/bf16-marlin": None,
    f"{H200}/run-2/bf16-triton": None,
    f"{H200}/run-2/bf16-triton_kernel": None,
    f"{H200}/run-2/fp8-auto": None,
    f"{H200}/run-2/fp8-cutlass": None,
    f"{H200}/run-2/fp8-deep_gemm": "port-in-use",
    f"{H200}/run-2/fp8-marlin": "unsupported",
    f"{H200}/run-2/int4-auto": None,
    f"{H200}/run-2/int4-cutlass": None,
    f"{H200}/run-2/int4-flashinfer_trtllm": "unfinished",
    f"{H200}/run-2/int4-marlin": None,
    f"{H200}/run-2/mixed-auto": None,
    f"{H200}/run-2/mxfp4-auto": "unsupported",
    f"{H200}/run-2/nvfp4-cutlass": "unsupported",
    f"{H200}/run-2/nvfp4-deep_gemm": "unsupported",
    f"{H200}/run-2/nvfp4-experimental_sgl_marlin": None,
    f"{H200}/run-2/nvfp4-flashinfer_cutedsl": "config-rejected",
    f"{H200}/run-2/nvfp4-flashinfer_cutlass": "unsupported",
    f"{H200}/run-2/nvfp4-flashinfer_trtllm": "unsupported",
    f"{H200}/run-2/nvfp4-flashinfer_trtllm_routed": "unsupported",
    f"{H200}/run-2/nvfp4-marlin": None,
    f"{H200}/run-2/nvfp4_hq-marlin": None,
    f"{H200}/run-2/nvfp4q-flashinfer_cutedsl": "unsupported",
    f"{H200}/run-3/bf16-marlin": None,
    f"{H200}/run-3/bf16-triton_kernel": None,
    f"{H200}/run-3/fp8-deep_gemm": None,
    f"{H200}/run-3/mixed-auto": None,
    f"{H200}/run-3/nvfp4-experimental_sgl_marlin": None,
    f"{H200}/run-3/nvfp4-marlin-fa3": "missing-kernel",
    f"{H200}/run-3/nvfp4-marlin-flashinfer": "unfinished",
    f"{H200}/run-3/nvfp4-marlin-solo": None,
}

# What was asked for the experts, what ran them, and the verdict.
EXPERTS = {
    # by the trace
    f"{H200}/run-1/bf16-triton": ("triton", "triton", "confirmed"),
    f"{H200}/run-2/fp8-cutlass": ("cutlass", "cutlass", "confirmed"),
    f"{H200}/run-2/int4-marlin": ("marlin", "marlin", "confirmed"),
    f"{H200}/run-2/nvfp4-marlin": ("marlin", "marlin", "confirmed"),
    # by the log: the method's name, or the tile sizes that Triton's kernel looks up
    f"{H200}/run-2/int4-cutlass": ("cutlass", "marlin", "fell-back"),
    f"{H200}/run-2/int4-auto": ("auto", "marlin", "confirmed"),
    f"{H200}/run-2/bf16-marlin": ("marlin", "triton", "fell-back"),
    f"{H200}/run-3/bf16-marlin": ("marlin", "triton", "fell-back"),
    f"{H200}/run-2/bf16-triton": ("triton", "triton", "confirmed"),
    f"{H200}/run-2/bf16-auto": ("auto", "triton", "confirmed"),
    f"{H200}/run-2/fp8-auto": ("auto", "triton", "confirmed"),
    f"{H200}/run-1/fp8-triton": ("triton", "triton", "confirmed"),
    # neither tells
    f"{H200}/run-2/nvfp4_hq-marlin": ("marlin", None, "unverified"),
    f"{H200}/run-3/nvfp4-marlin-solo": ("marlin", None, "unverified"),
    f"{H200}/run-2/nvfp4-experimental_sgl_marlin": ("experimental_sgl_marlin", None, "unverified"),
    f"{H200}/run-3/nvfp4-experimental_sgl_marlin": ("experimental_sgl_marlin", None, "unverified"),
    f"{H200}/run-1/fp8-deep_gemm": ("deep_gemm", None, "unverified"),
    f"{H200}/run-3/fp8-deep_gemm": ("deep_gemm", None, "unverified"),
    f"{H200}/run-2/bf16-triton_kernel": ("triton_kernel", None, "unverified"),
    f"{H200}/run-3/bf16-triton_kernel": ("triton_kernel", None, "unverified"),
    f"{H200}/run-2/mixed-auto": ("auto", None, "unverified"),
    f"{H200}/run-3/mixed-auto": ("auto", None, "unverified"),
    f"{CPU}/cpu-bf16": (None, None, "unverified"),
    f"{CPU}/cpu-bf16-marlin": ("marlin", None, "unverified"),
    f"{CPU}/cpu-bf16-triton": ("triton", None, "unverified"),
}

# What ran attention and the dense layers: all asked for Triton's attention, and left the dense
# layers to the server unless they were FP8.  Where nothing shows it, it is unverified.
OTHERS = {
    f"{H200}/run-1/bf16-triton": (("triton", "confirmed"), ("cublas", "confirmed")),
    f"{H200}/run-2/int4-marlin": (("triton", "confirmed"), ("cublas", "confirmed")),
    f"{H200}/run-2/nvfp4-marlin": (("triton", "confirmed"), ("cublas", "confirmed")),
    f"{H200}/run-2/fp8-cutlass": (("triton", "confirmed"), ("triton", "confirmed")),
    f"{H200}/run-1/fp8-triton": ((None, "unverified"), ("triton", "confirmed")),
}
UNKNOWN = ((None, "unverified"), (None, "unverified"))


@cache
def examined(name: str) -> dict:
    log = RECORDINGS / f"{name}.log"
    info = log.with_suffix(".server_info.json")
    trace = log.with_suffix(".trace.json.gz")
    return examine(
        log,
        json.loads(info.read_text()) if info.is_file() else None,
        [trace] if trace.is_file() else [],
    )


def test_no_recording_is_left_out() -> None:
    logs = {str(log.relative_to(RECORDINGS))[:-4] for log in RECORDINGS.rglob("*.log")}
    assert logs == set(OUTCOMES)


@pytest.mark.parametrize(("name", "class_"), OUTCOMES.items(), ids=OUTCOMES)
def test_outcomes(name: str, class_: str | None) -> None:
    document = examined(name)
    assert (document["failure"] or {}).get("class") == class_
    assert document["outcome"] == {None: "ready", "unfinished": "unfinished"}.get(class_, "failed")


def test_every_server_that_became_ready_has_a_verdict() -> None:
    assert set(EXPERTS) == {name for name, class_ in OUTCOMES.items() if class_ is None}


@pytest.mark.parametrize(("name", "expected"), EXPERTS.items(), ids=EXPERTS)
def test_verdicts(name: str, expected: tuple[str | None, ...]) -> None:
    found = examined(name)["backends"]
    experts = found["experts"]
    assert (experts["asked"], experts["used"], experts["verdict"]) == expected
    others = tuple((found[each]["used"], found[each]["verdict"]) for each in ("attention", "dense"))
    assert others == OTHERS.get(name, UNKNOWN)


def test_fields_marked_as_recorded_are_in_what_the_servers_said() -> None:
    """And none is that the servers of such a version did not tell."""
    told = {
        version: [
            json.loads(path.read_text())
            for path in (RECORDINGS / folder).rglob("*.server_info.json")
        ]
        for version, folder in (("0.5.16", H200), ("0.5.23", CPU))
    }
    assert {version: len(documents) for version, documents in told.items()} == {
        "0.5.16": 12,
        "0.5.23": 3,
    }
    for row in table("resolved_fields")["fields"]:
        for name, known in row["names"].items():
            said = [
                version
                for version, documents in told.items()
                if all(name in each or name in each["internal_states"][0] for each in documents)
            ]
            assert said == known.get("recorded", []), name
