"""Rows for other tools, and what a whole sweep says."""

from __future__ import annotations

from typing import Any

import pytest

from bringup.load.rows import COLUMNS, About, row
from bringup.load.sweeps import best_under, joined, knee

ABOUT = About(
    hw="NVIDIA H200", model="model", precision="nvfp4", flags=[{"flag": "tp", "value": 4}], gpus=4
)


def repeat(**changes: Any) -> dict[str, Any]:
    return {
        "requests": 80,
        "completed": 79,
        "duration_s": 10.0,
        "input_tokens": 79 * 1000,
        "output_tokens": 79 * 500,
        "void": [],
    } | changes


def point(concurrency: int = 8, **changes: Any) -> dict[str, Any]:
    summary = {
        "n_repeats": 2,
        "output_tok_s": 4000.0,
        "spread": 0.01,
        "ttft_ms_mean": 110.0,
        "ttft_ms_p50": 100.0,
        "ttft_ms_p90": 150.0,
        "ttft_ms_p99": 200.0,
        "tpot_ms_mean": 8.5,
        "tpot_ms_p50": 8.0,
        "tpot_ms_p90": 9.0,
        "tpot_ms_p99": 10.0,
        "e2e_ms_mean": 5000.0,
        "e2e_ms_p50": 4900.0,
        "e2e_ms_p90": 5100.0,
        "e2e_ms_p99": 5300.0,
    }
    return {
        "experiment": "x",
        "concurrency": concurrency,
        "status": "ok",
        "boot": "b1",
        "workload": {"input_tokens": 1000, "output_tokens": 500},
        "gate": {"verdict": "pass"},
        "repeats": [repeat(), repeat(), repeat(void=["cache-cold: warm"])],
        "void": [],
        "summary": summary | changes.pop("summary", {}),
    } | changes


def test_a_row_has_the_names_of_vllm_inferencex_and_sglang() -> None:
    found = row(point(), ABOUT)
    assert found["output_throughput"] == 4000
    assert found["request_throughput"] == 8  # 4000 tok/s, 500 tokens each
    assert found["input_throughput"] == 8000
    assert found["total_token_throughput"] == found["total_throughput"] == 12000
    assert (found["tput_per_gpu"], found["output_tput_per_gpu"]) == (3000, 1000)
    assert found["median_ttft_ms"] == 100 and found["median_ttft"] == pytest.approx(0.1)
    assert found["p99_e2el_ms"] == found["p99_e2e_latency_ms"] == 5300
    assert found["median_intvty"] == 125 and found["p99_intvty"] == 100
    assert (found["isl"], found["osl"], found["conc"], found["tp"]) == (1000, 500, 8, 4)
    assert (found["hw"], found["precision"], found["framework"]) == ("h200", "nvfp4", "sglang")
    assert found["num_gpus"] == 4  # else tp × ep is taken for it
    assert tuple(found) == COLUMNS


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("4 × NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx6000pro"),
        ("4 × NVIDIA GB200", "gb200"),
        ("8 × NVIDIA H100 80GB HBM3", "h100"),
        ("4 × NVIDIA H100 80GB HBM3 + 4 × NVIDIA H200", None),
        ("a CPU (AMD EPYC, 64 cores)", None),
    ],
)
def test_hardware_has_the_key_that_inferencex_knows_or_its_own_words(
    words: str, key: str | None
) -> None:
    """Its importer: lower case, up to the first ``-``, and leave out what is none of its keys."""
    about = About(hw=words, model="m", precision="fp8-block", flags=[], gpus=4)
    found = row(point(), about)
    assert found["hw"] == (key or words)
    assert found["precision"] == "fp8"


def test_void_repeats_do_not_count() -> None:
    found = row(point(), ABOUT)
    assert (found["num_prompts"], found["completed"], found["failed"]) == (160, 158, 2)
    assert found["duration"] == 20


def test_a_point_without_figures_is_a_row_without_figures() -> None:
    skipped = {"experiment": "x", "concurrency": 8, "status": "skipped"}
    found = row(skipped, ABOUT)
    assert found["output_throughput"] is found["median_ttft"] is found["p99_intvty"] is None
    assert tuple(found) == COLUMNS


def sweep() -> list[dict[str, Any]]:
    figures = [(1, 100.0, 5000.0, 50.0), (8, 700.0, 5700.0, 90.0), (64, 1200.0, 27000.0, 900.0)]
    return [
        point(c, summary={"output_tok_s": tok, "e2e_ms_mean": e2e, "ttft_ms_p99": ttft})
        for c, tok, e2e, ttft in figures
    ]


def boot(name: str, tok_s: float, **changes: Any) -> dict[str, Any]:
    """Return a point as one boot measured it, with two repeats."""
    times = {"n": 79, "mean": 9.0, "p50": 8.0, "p90": 9.0, "p99": 10.0}
    figures = {"steady_tok_s": tok_s, "user_tok_s": 9.0, "server": None, "gpu": None}
    figures |= dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms"), times)
    of_boot = [{**repeat(), **figures, "boot": name, "output_tok_s": tok_s + n} for n in (0, 1)]
    phase = {"verdict": "pass", "asked": 4, "right": 4, "message": "all right", "not_right": []}
    gate = {"verdict": "pass", "before": phase, "during": phase, "after": phase}
    return point(8, boot=name, repeats=of_boot, gate=gate) | {"reason": None} | changes


def test_boots_of_a_level_are_one_point() -> None:
    whole = joined({1: boot("b1", 100.0), 2: boot("b2", 110.0)})
    assert [each["boot"] for each in whole["repeats"]] == ["b1", "b1", "b2", "b2"]
    assert whole["summary"]["n_repeats"] == 4
    assert whole["summary"]["output_tok_s"] == 105.381  # (100.5 * 110.5) ** 0.5
    assert whole["gate"]["during"]["right"] == 8
    assert (whole["status"], whole["reason"], whole["void"]) == ("ok", None, [])


def test_the_worst_boot_speaks_for_the_point() -> None:
    why = {"class": "out-of-memory", "message": "no memory left", "evidence": [], "hint": None}
    failed = {"experiment": "x", "concurrency": 8, "status": "failed", "reason": why}
    whole = joined({2: failed, 1: boot("b1", 100.0)})
    assert (whole["status"], whole["reason"]["class"]) == ("failed", "out-of-memory")
    assert whole["reason"]["message"] == "boot 2: no memory left"
    assert whole["summary"]["n_repeats"] == 2  # what the first one measured is kept
    odd = {"verdict": "wrong", "asked": 4, "right": 1, "message": "1 of 4", "not_right": [{}]}
    gate = {"verdict": "wrong", "before": odd}
    wrong = boot("b2", 200.0, status="wrong", reason=why, gate=gate)
    whole = joined({1: boot("b1", 100.0), 2: wrong})
    assert (whole["status"], whole["gate"]["verdict"]) == ("wrong", "wrong")
    assert (whole["gate"]["before"]["right"], whole["gate"]["after"]["right"]) == (5, 4)


def test_a_void_repeat_says_on_which_boot() -> None:
    void = boot("b2", 110.0, void=["repeat 1: cache-cold: warm"])
    void["repeats"][0]["void"] = ["cache-cold: warm"]
    whole = joined({1: boot("b1", 100.0), 2: void})
    assert whole["void"] == ["boot 2, repeat 1: cache-cold: warm"]
    assert whole["summary"]["n_repeats"] == 3


def test_the_best_level_under_a_limit() -> None:
    best = best_under(sweep(), {"ttft_ms_p99": 100.0})
    assert best is not None and best["concurrency"] == 8
    assert best_under(sweep(), {"ttft_ms_p99": 10.0}) is None
    assert (best_under(sweep(), {}) or {})["concurrency"] == 64


def test_points_that_do_not_count_are_never_best() -> None:
    points = sweep()
    points[2]["summary"]["output_tok_s"] = None  # every repeat is void
    points[1]["status"] = "wrong"
    assert (best_under(points, {}) or {})["concurrency"] == 1


def test_a_limit_on_an_unknown_figure_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'ttft_p99': no such figure; there are: .*ttft_ms_p99"):
        best_under(sweep(), {"ttft_p99": 100.0})


def test_the_knee_is_where_throughput_per_latency_peaks() -> None:
    assert (knee(sweep()) or {})["concurrency"] == 8  # 0.02, 0.123 and 0.044
    assert knee(sweep()[:2]) is None
