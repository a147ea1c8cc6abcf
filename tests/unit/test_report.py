"""The report says what the documents say: exact cells and sentences from a made-up run."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.report import study

from bringup import report
from bringup.report import provenance


@pytest.fixture(scope="module", autouse=True)
def checkout() -> Iterator[None]:
    """Let the tests see one checkout, whatever is committed while they run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            provenance, "revision", lambda: {"commit": "0" * 40, "dirty": False, "changed": []}
        )
        yield


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    build(study.write(folder))
    return folder


def build(run: study.Run) -> None:
    report.build(experiments=run.experiments, documents=run.documents, output=run.folder)


def told(run: study.Run) -> dict[str, Any]:
    """Return the report of a run as data."""
    return report.document(experiments=run.experiments, documents=run.documents, output=run.folder)


@pytest.fixture(scope="module")
def page(results: Path) -> str:
    return (results / "report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def document(results: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((results / "report.json").read_text(encoding="utf-8"))
    return loaded


def row(page: str, *starts: str) -> list[str]:
    """Return the cells of the first row of ``starts[-1]`` after the lines that begin so."""
    lines = iter(page.splitlines())
    for start in starts[:-1]:
        next(line for line in lines if line.startswith(start))
    found = next(line for line in lines if line.startswith(f"| [{starts[-1]}]"))
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def sentences(document: dict[str, Any], name: str) -> list[str]:
    answers: list[str] = next(s["answer"] for s in document["studies"] if s["name"] == name)
    return answers


def point(folder: Path, name: str, level: int, **changed: Any) -> None:
    """Change a point of a run that was written."""
    path = folder / "experiments" / name / "points" / f"c{level}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed), encoding="utf-8")


# Tables.


def test_patches_have_a_table_of_their_own(page: str) -> None:
    cells = row(page, "**What patches change**", "bf16-stock")
    assert cells[:3] == ["[bf16-stock]", "[bf16-ours]", "patches/log.patch"]
    assert cells[3] == "ok → ok"
    assert all(" → " in cell for cell in cells[4:])


def test_overview_has_status_formats_backend_and_right_answers(page: str) -> None:
    assert row(page, "## Study: dsv4-flash", "nvfp4-marlin")[1:] == [
        "ok",
        "nvfp4 / fp8-block",
        "marlin (confirmed)",
        "25/25",
    ]


def test_backend_that_was_not_used_is_told(page: str) -> None:
    cells = row(page, "## Study: dsv4-flash", "mxfp4-stock")
    assert cells[3] == "marlin → torch-native (fell-back)"


def test_throughput_at_each_level(page: str) -> None:
    assert row(page, "**Output tokens", "nvfp4-cutlass")[1:] == ["10.5", "21.0", "28.0"]


def test_the_fastest_is_marked_only_where_it_is_shown(page: str) -> None:
    assert row(page, "**Output tokens", "nvfp4-marlin")[1:] == [
        "12.0 (fastest)",
        "22.5 (fastest)",
        "28.0",
    ]


def test_latency_at_each_level(page: str) -> None:
    assert row(page, "**Time to first", "mxfp4-stock")[1:] == [
        "900 / 98.0",
        "1,900 / 430",
        "3,100 / 690",
    ]


def test_wrong_answers_strike_the_figures(page: str) -> None:
    assert row(page, "**Output tokens", "nvfp4-triton")[1:] == ["–", "~~99.1~~", "–"]


def test_problems_name_the_cause_and_what_to_try(page: str) -> None:
    assert (
        "- **refused** at plan: flashinfer_trtllm_routed has kernels for SM100 only, "
        "this machine is SM120.\n"
        "  What to try: use marlin, or give force: \\<why> to try it all the same.\n"
        "  1 experiment: [nvfp4-routed]\n"
    ) in page


def test_time_by_module_with_what_ran_it(page: str) -> None:
    assert row(page, "## Where the time goes", "nvfp4-marlin")[1:] == [
        "8",
        "31.0 % (marlin, tensor)",
        "52.0 % (custom, cuda)",
        "12.0 % (custom, cuda)",
        "5.0 % (custom, cuda)",
    ]


def test_a_profile_tells_of_backends_that_the_log_does_not(page: str) -> None:
    cells = row(page, "## Asked → resolved → used", "nvfp4-marlin")
    assert cells[1:] == ["marlin (confirmed)", "triton (confirmed)", "auto (unverified)"]


def test_gates_of_every_level(page: str) -> None:
    assert row(page, "## Right answers", "nvfp4-triton")[1:] == [
        "0/25 (wrong)",
        "–",
        "0/4 · 0/4 · 0/4 (wrong)",
        "–",
    ]


def test_questions_answered_wrongly_are_told_with_who_did(page: str) -> None:
    asked = page.index("Questions that were answered wrongly")
    (line,) = [line for line in page[asked:].splitlines() if line.startswith("| What is 17")]
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    assert cells == [
        "What is 17\\*23? Answer with the number only.",
        "`391`",
        "4",
        "`7!!!!`",
        "nvfp4-triton",
    ]


def test_what_the_server_settled_otherwise_is_told(page: str) -> None:
    section = page[page.index("### mxfp4-stock") : page.index("### nvfp4-marlin")]
    assert "| `mem-fraction-static` | `0.9` | `0.83`   | mem_fraction_static is lowered" in section
    assert page.count("What the server settled otherwise") == 1


def test_void_points_are_among_the_problems(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    for level in (8, 16):
        summary = {"output_tok_s": None}
        point(tmp_path, "nvfp4-marlin", level, summary=summary, void=["repeat 1: cached tokens"])
    build(run)
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert (
        "- **void** at point C = 8: repeat 1: cached tokens.\n"
        "  What to try: measure it again; each experiment's section says how.\n"
        "  1 experiment: [nvfp4-marlin]\n"
    ) in page
    assert page.count("- **void**") >= 2


def test_the_first_question_is_shown_with_its_answer(page: str) -> None:
    assert (
        "- the first of 25 questions after launch: "
        "What is 17\\*23? Answer with the number only. → `391` (right)"
    ) in page


def test_links_lead_to_files_that_the_run_has(page: str) -> None:
    assert "[plan](experiments/nvfp4-marlin/plan.json)" in page
    assert "[server log](experiments/nvfp4-marlin/server.log)" in page


def test_a_refused_experiment_has_no_server_log_to_link(page: str) -> None:
    assert "experiments/nvfp4-routed/server.log" not in page


def test_csv_has_a_row_for_every_point(results: Path) -> None:
    rows = list(csv.DictReader((results / "points.csv").open(encoding="utf-8")))
    assert len(rows) == 14
    triton = next(each for each in rows if each["experiment"] == "nvfp4-triton")
    assert (triton["output_tok_s"], triton["ranked"]) == ("99.1", "False")


def test_json_lines_hold_the_repeats(results: Path) -> None:
    rows = [json.loads(line) for line in (results / "points.jsonl").read_text().splitlines()]
    marlin = next(r for r in rows if (r["experiment"], r["concurrency"]) == ("nvfp4-marlin", 16))
    assert [repeat["output_tok_s"] for repeat in marlin["repeats"]] == [28.0, 28.1, 27.9, 28.0]


def test_json_lines_are_what_readers_of_other_tools_look_for(results: Path) -> None:
    """Names of InferenceX's aggregate (seconds, per GPU), of vLLM's result, of SGLang's line."""
    rows = [json.loads(line) for line in (results / "points.jsonl").read_text().splitlines()]
    marlin = next(r for r in rows if (r["experiment"], r["conc"]) == ("nvfp4-marlin", 16))
    assert (marlin["isl"], marlin["osl"], marlin["framework"]) == (1024, 1024, "sglang")
    assert marlin["median_ttft"] == pytest.approx(marlin["median_ttft_ms"] / 1000)
    assert marlin["p99_intvty"] == pytest.approx(1000 / marlin["p99_tpot_ms"], rel=1e-3)
    assert marlin["output_throughput"] == marlin["output_tok_s"]
    assert marlin["output_tput_per_gpu"] == pytest.approx(marlin["output_tok_s"] / 4)
    assert marlin["total_throughput"] == marlin["total_token_throughput"]
    assert marlin["request_rate"] == "inf"
    assert marlin["power_valid"] == 1 and marlin["power_valid"] is not True
    assert marlin["avg_power_w"] == pytest.approx(marlin["avg_total_gpu_power_w"] / 4)
    assert marlin["gate"]["passed"] and marlin["backend"]["asked"] == "marlin"
    assert marlin["provenance"]["engine"]
    nested = [key for key, value in marlin.items() if isinstance(value, dict | list)]
    assert nested == ["gate", "backend", "provenance", "workload", "repeats"]


def test_figures_that_no_ranking_counts_are_not_offered_to_other_rankings(results: Path) -> None:
    rows = [json.loads(line) for line in (results / "points.jsonl").read_text().splitlines()]
    wrong = [each for each in rows if not each["ranked"]]
    assert wrong and any(each["output_tok_s"] for each in wrong)
    assert {each["output_throughput"] for each in wrong} == {None}
    assert {each["median_ttft"] for each in wrong} == {None}


# Energy, times, revisions.


def test_energy_at_each_level_with_power_and_idle_baseline(page: str) -> None:
    # 1200 W over 27.9, 28.0, 28.0 and 28.1 tok/s: 42.857 J a token in the middle.
    cells = row(page, "## Energy", "nvfp4-marlin")
    assert cells[1:] == ["320 W", "100 J (1,200 W)", "53.3 J (1,200 W)", "42.9 J (1,200 W)"]


def test_energy_of_wrong_answers_is_struck_out(page: str) -> None:
    assert row(page, "## Energy", "nvfp4-triton")[3].startswith("~~12.1 J~~")


def telemetry(folder: Path, name: str, level: int, *changes: dict[str, Any] | None) -> None:
    """Change the telemetry of a point's repeats, in order; None takes it away."""
    path = folder / f"experiments/{name}/points/c{level}.json"
    document = json.loads(path.read_text())
    for repeat, change in zip(document["repeats"], changes, strict=True):
        repeat["gpu"] = None if change is None else repeat["gpu"] | change
    path.write_text(json.dumps(document), encoding="utf-8")


def test_repeats_whose_power_has_holes_give_no_energy_and_it_says_so(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    hole = {
        "power_valid": False,
        "power_invalid": "GPU-1: 3.2 s without a sample",
        "power_w": None,
        "energy_j": None,
        "joules_per_output_token": None,
    }
    capped = {"slowed": {"power cap": 0.4}}
    telemetry(tmp_path, "nvfp4-marlin", 16, hole, capped, {}, hole)
    telemetry(tmp_path, "nvfp4-marlin", 8, hole, hole, hole, hole)
    build(run)
    cells = row((tmp_path / "report.md").read_text(), "## Energy", "nvfp4-marlin")
    assert cells[3] == "– (GPU-1: 3.2 s without a sample)"
    assert cells[4] == "42.9 J (1,200 W, 2 of 4 repeats, power cap in 40 % of samples)"


def test_a_machine_without_gpus_has_no_energy_section(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    run.experiments = [entry for entry in run.experiments if entry["name"] == "bf16-stock"]
    for level in (1, 8):
        telemetry(tmp_path, "bf16-stock", level, None)
    build(run)
    assert "## Energy" not in (tmp_path / "report.md").read_text()


def test_when_and_by_which_revision_it_was_measured(page: str) -> None:
    assert "driver 580.95.05, CUDA 13.0, 2026-06-17 09:20 to 09:50 UTC." in page
    marlin = page[page.index("### nvfp4-marlin") : page.index("### nvfp4-cutlass")]
    assert (
        "- measured: 2026-06-17 09:20 to 09:50 UTC, by the workflow at c0ffee000000 "
        "with uncommitted changes in config/e.yaml\n"
    ) in marlin
    assert "- power limit of its GPUs: 4 × 600 W\n" in marlin
    assert "Written by the workflow at 000000000000." in page


def test_the_checkpoint_table_has_one_hash_over_the_files_served(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    files = [{"name": "b", "size": 2, "sha256": "2" * 64}, {"name": "a", "sha256": "1" * 64}]
    weights = tmp_path / "experiments/nvfp4-marlin/weights.json"
    weights.write_text(json.dumps(json.loads(weights.read_text()) | {"files": files}))
    listing = f"{'1' * 64}  a\n{'2' * 64}  b\n"
    found = told(run)["provenance"]["checkpoints"]
    assert {each["name"]: each["files_sha256"] for each in found} == {
        "mxfp4": None,
        "nvfp4": hashlib.sha256(listing.encode()).hexdigest(),
        "tiny": None,
    }


# Answers.


def test_the_fastest_is_named_only_where_it_is_shown(document: dict[str, Any]) -> None:
    said = sentences(document, "dsv4-flash")
    assert said[0] == "On 4 × RTX PRO 6000, nvfp4-marlin is right and the fastest at C = 1 and 8."
    assert said[1] == (
        "3 of 7 experiments are right; 1 wrong, 1 failed, 1 refused and 1 without a result yet."
    )
    assert said[2] == (
        "No winner is named at C = 16: nvfp4-marlin and nvfp4-cutlass are within noise; "
        "the highest figure is 28.0 tok/s by nvfp4-marlin at C = 16."
    )


def test_a_baseline_that_differs_in_many_things_proves_none_of_them(
    document: dict[str, Any],
) -> None:
    # Welch's interval over the logarithms of four repeats a side, done apart: [+23.1, +24.7] %.
    (said,) = [each for each in sentences(document, "dsv4-flash") if "against" in each]
    assert "+24 % [+23, +25] at C = 16 (faster everywhere)" in said
    assert said.endswith(
        "they differ in 3 things (checkpoint, engine and patches), "
        "so none of them alone is shown to be the cause."
    )


def test_tempting_figures_of_wrong_answers_are_named_as_such(document: dict[str, Any]) -> None:
    assert (
        "nvfp4-triton starts but is wrong (0 of 25 answers were right): "
        "its 99.1 tok/s at C = 8 count for nothing."
    ) in sentences(document, "dsv4-flash")


def test_repeats_far_apart_are_told(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    for level, throughputs in ((1, (10.0, 14.0, 12.0)), (8, (20.0, 25.0, 21.0))):
        document = study.point("nvfp4-marlin", level, throughputs, 610.0, 82.0)
        point(tmp_path, "nvfp4-marlin", level, **document)
    assert (
        "Repeats of one point lie more than 10 % apart: nvfp4-marlin at C = 1 (33 %) "
        "and nvfp4-marlin at C = 8 (23 %); was the machine busy?"
    ) in sentences(told(run), "dsv4-flash")


def test_what_fell_back_is_named(document: dict[str, Any]) -> None:
    assert (
        "Not what was asked for: mxfp4-stock was asked for marlin for its experts "
        "and ran torch-native."
    ) in sentences(document, "dsv4-flash")


def test_refusals_and_failures_are_told_with_their_reasons(document: dict[str, Any]) -> None:
    assert sentences(document, "dsv4-flash")[-2:] == [
        "nvfp4-routed was refused: flashinfer_trtllm_routed has kernels for SM100 only, "
        "this machine is SM120.",
        "nvfp4-deep_gemm failed: the engine refuses this backend for NVFP4 on this GPU.",
    ]


def test_one_boot_a_side_names_no_winner(document: dict[str, Any]) -> None:
    said = sentences(document, "arithmetic")
    assert said[0] == "On 4 × RTX PRO 6000, 2 of 2 experiments are right."
    assert said[1] == (
        "No winner is named at C = 1 and 8: too few repeats or boots to call a difference; "
        "the highest figures are 176 tok/s by bf16-ours at C = 1 "
        "and 594 tok/s by bf16-stock at C = 8."
    )


def test_a_patch_is_compared_with_the_engine_without_it(document: dict[str, Any]) -> None:
    assert sentences(document, "arithmetic")[2] == (
        "bf16-ours against bf16-stock: +1.7 % at C = 1 and −0.7 % at C = 8 "
        "(insufficient everywhere); they differ in one thing, patches."
    )


def test_wrong_experiment_is_never_ranked(document: dict[str, Any]) -> None:
    orders = [ranking["order"] for each in document["studies"] for ranking in each["rankings"]]
    assert "nvfp4-triton" not in {place["experiment"] for order in orders for place in order}


def test_the_same_reason_for_many_is_told_once(tmp_path: Path) -> None:
    run = study.Run(tmp_path)
    run.add("hardware.json", study.HARDWARE)
    why = study.reason("screen", "needs 8 GPUs, this machine has 4")
    for name in ("a", "b", "c"):
        run.experiments.append(study.entry(name, "big", "model", "engine"))
        run.add(
            f"experiments/{name}/plan.json",
            study.plan(name, "model", "engine", "auto", ("nvfp4", "bf16"))
            | study.head("plan/1", "refused", why),
        )
    assert sentences(told(run), "big") == [
        "On 4 × RTX PRO 6000, all 3 experiments were refused: needs 8 GPUs, this machine has 4."
    ]
    run.experiments.append(study.entry("d", "big", "model", "engine"))
    assert sentences(told(run), "big") == [
        "On 4 × RTX PRO 6000, 0 of 4 experiments are right; 3 refused and 1 without a result yet.",
        "a, b and c were refused: needs 8 GPUs, this machine has 4.",
    ]


# The gate.


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"gate": {"verdict": "wrong"}, "status": "wrong"}, "its own gate says wrong"),
        ({"gate": {"verdict": "flaky"}, "status": "wrong"}, "its own gate says flaky"),
        (
            {"summary": {"output_tok_s": None}, "void": ["repeat 1: cached"]},
            "void: repeat 1: cached",
        ),
        (
            {"status": "failed", "reason": study.reason("oom", "out of memory")},
            "failed: out of memory",
        ),
    ],
)
def test_a_point_that_does_not_count_is_struck_out_and_not_ranked(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    run = study.write(tmp_path)
    point(tmp_path, "nvfp4-marlin", 8, **changed)
    document = told(run)
    marlin = next(each for each in document["experiments"] if each["name"] == "nvfp4-marlin")
    assert next(p["unranked"] for p in marlin["points"] if p["concurrency"] == 8) == why
    (ranking,) = [each for each in document["studies"][0]["rankings"] if each["concurrency"] == 8]
    assert "nvfp4-marlin" not in {place["experiment"] for place in ranking["order"]}


def test_probes_that_failed_after_launch_count_against_every_point(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    bad = study.probe("nvfp4-marlin", 20, gate="wrong")
    (tmp_path / "experiments/nvfp4-marlin/probe.json").write_text(json.dumps(bad))
    document = told(run)
    assert sentences(document, "dsv4-flash")[0] == (
        "On 4 × RTX PRO 6000, nvfp4-cutlass is right and the fastest at every concurrency "
        "measured, C = 1, 8 and 16."
    )


# One variable at a time.


def test_the_nearest_baseline_is_chosen_where_none_is_named(document: dict[str, Any]) -> None:
    cutlass = next(e for e in document["experiments"] if e["name"] == "nvfp4-cutlass")
    assert cutlass["baseline"] == {
        "name": "nvfp4-marlin",
        "by": "nearest",
        "differences": [
            {"what": "moe-runner-backend", "ours": "flashinfer_cutlass", "theirs": "marlin"}
        ],
    }


def test_environment_and_workload_are_differences_too(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    plan = json.loads((tmp_path / "experiments/bf16-ours/plan.json").read_text())
    plan["env"] = {"SGLANG_X": "1"}
    (tmp_path / "experiments/bf16-ours/plan.json").write_text(json.dumps(plan))
    run.experiments[-1]["sweep"]["input_tokens"] = 64
    ours = next(e for e in told(run)["experiments"] if e["name"] == "bf16-ours")
    assert [each["what"] for each in ours["baseline"]["differences"]] == [
        "patches",
        "workload",
        "SGLANG_X=",
    ]


def test_another_machine_driver_or_power_limit_is_a_difference(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    path = tmp_path / "experiments/bf16-ours/server.json"
    server = json.loads(path.read_text())
    server["gpus"] = ["GPU-elsewhere"]
    server["live"]["gpus"][0]["power_limit_w"] = 450
    path.write_text(json.dumps(server))
    ours = next(e for e in told(run)["experiments"] if e["name"] == "bf16-ours")
    assert ours["baseline"]["differences"] == [
        {"what": "patches", "ours": "patches/log.patch", "theirs": "none"},
        {"what": "machine", "ours": "another one", "theirs": "this one"},
        {"what": "power limit", "ours": "450 and 600 W", "theirs": "600 W"},
    ]


# Unfinished, old, foreign.


def test_same_documents_same_report(results: Path, tmp_path: Path) -> None:
    build(study.write(tmp_path))
    for name in ("report.md", "report.html", "report.json", "points.csv", "points.jsonl"):
        assert (tmp_path / name).read_bytes() == (results / name).read_bytes(), name
    for picture in (results / "plots").iterdir():
        assert (tmp_path / "plots" / picture.name).read_bytes() == picture.read_bytes()


def notices(document: dict[str, Any]) -> dict[str, str]:
    return {each["class"]: each["message"] for each in document["notices"]}


def test_half_a_study_is_reported_as_such(document: dict[str, Any]) -> None:
    (unfinished,) = document["notices"]
    assert unfinished["class"] == "unfinished"
    assert unfinished["evidence"][0] == "experiments/nvfp4-late/weights.json"
    late = next(each for each in document["experiments"] if each["name"] == "nvfp4-late")
    assert (late["status"], late["stage"]) == ("pending", "weights")


def test_no_document_at_all_is_still_a_report(tmp_path: Path) -> None:
    run = study.Run(tmp_path)
    run.experiments.append(study.entry("alone", "s", "model", "engine"))
    build(run)
    document = told(run)
    assert set(notices(document)) == {"no-hardware", "no-point"}
    assert sentences(document, "s") == ["alone is without a result yet."]
    assert not (tmp_path / "plots").exists()


def test_no_experiment_at_all_is_still_a_report(tmp_path: Path) -> None:
    report.build(experiments=[], documents=[], output=tmp_path)
    assert (tmp_path / "report.html").exists()


def test_a_document_of_another_version_is_left_out_and_told(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    point(tmp_path, "nvfp4-marlin", 8, schema="point/0")
    assert notices(told(run))["other-version"] == (
        "experiments/nvfp4-marlin/points/c8.json is 'point/0' where this report reads point/1; "
        "it was left out"
    )


def test_a_broken_document_is_left_out_and_told(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    (tmp_path / "experiments/nvfp4-marlin/points/c8.json").write_text('{"schema": "poi')
    said = notices(told(run))["unreadable"]
    assert said.startswith("experiments/nvfp4-marlin/points/c8.json: not JSON")


def test_results_of_two_machines_are_told_apart(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    other = study.HARDWARE | {"gpus": [study.HARDWARE["gpus"][0] | {"uuid": "GPU-elsewhere"}]}
    (tmp_path / "hardware.json").write_text(json.dumps(other))
    said = notices(told(run))["mixed-machines"]
    assert "7 experiments ran on GPUs that this machine does not have" in said


def test_nodes_of_a_cluster_are_one_machine(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    kind = study.HARDWARE | {"gpus": [gpu | {"uuid": None} for gpu in study.HARDWARE["gpus"]]}
    (tmp_path / "hardware.json").write_text(json.dumps(kind))
    assert "mixed-machines" not in notices(told(run))


def test_a_skip_names_the_cause_of_the_engine_or_checkpoint(tmp_path: Path) -> None:
    run = study.Run(tmp_path)
    run.add("hardware.json", study.HARDWARE)
    run.experiments.append(study.entry("x", "s", "model", "engine"))
    why = study.reason("patch-conflict", "PR #1 does not apply")
    run.add("engines/engine/engine.json", {**study.head("engine/1", "failed", why), "engine": "e"})
    run.add("experiments/x/plan.json", study.head("plan/1", "skipped", why))
    (row,) = told(run)["experiments"]
    assert (row["status"], row["stage"]) == ("failed", "engine")
    assert row["cause"]["message"] == "PR #1 does not apply"


# What changed.


def test_the_first_report_has_nothing_to_compare_with(document: dict[str, Any]) -> None:
    assert document["changes"] == {"previous": False, "rows": []}


def test_changes_since_the_previous_report(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    run = study.write(folder)
    figures = study.point("nvfp4-cutlass", 16, (31.0, 31.1, 30.9), 2500.0, 561.0)
    (folder / "experiments/nvfp4-cutlass/points/c16.json").write_text(json.dumps(figures))
    (folder / "experiments/nvfp4-deep_gemm/server.json").unlink()
    for _ in range(2):  # the second time from the same documents tells the same
        assert told(run)["changes"]["rows"] == [
            {
                "experiment": "nvfp4-cutlass",
                "what": "output tok/s at C = 16",
                "before": "28.0",
                "now": "31.0",
            },
            {
                "experiment": "nvfp4-deep_gemm",
                "what": "status",
                "before": "failed",
                "now": "pending",
            },
        ]


def test_an_experiment_that_comes_or_goes_is_a_change(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    run = study.write(folder)
    run.experiments = [entry for entry in run.experiments if entry["name"] != "bf16-ours"]
    assert told(run)["changes"]["rows"] == [
        {
            "experiment": "bf16-ours",
            "what": "experiment",
            "before": "ok",
            "now": "gone from the config",
        }
    ]


def test_a_narrowed_run_forgets_nothing_of_the_other_studies(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    run = study.write(folder)
    everything = run.experiments
    run.experiments = [entry for entry in everything if entry["study"] == "arithmetic"]
    assert told(run)["changes"]["rows"] == []
    run.experiments = everything
    assert told(run)["changes"]["rows"] == []


def test_a_broken_history_is_not_the_end(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    (tmp_path / "history.jsonl").write_text('{"schema": "history/0"}\nnot json\n[]\n')
    assert told(run)["changes"]["previous"] is False


def test_the_history_stays_small(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    for number in range(12):
        run.experiments[0]["name"] = f"renamed{number}"
        told(run)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 10


# Pictures.


def pictures(run: study.Run) -> set[str]:
    build(run)
    return {path.name for path in (run.folder / "plots").glob("*.svg")}


def test_no_picture_without_a_use(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    run.experiments = [entry for entry in run.experiments if entry["name"] == "bf16-stock"]
    (tmp_path / "experiments/bf16-stock/points/c8.json").unlink()
    assert pictures(run) == set()


def test_a_measure_that_nobody_has_is_not_drawn(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    run.experiments = [entry for entry in run.experiments if entry["study"] == "arithmetic"]
    for name in ("bf16-stock", "bf16-ours"):
        for level in (1, 8):  # answers of one token have no time between tokens
            path = tmp_path / f"experiments/{name}/points/c{level}.json"
            document = json.loads(path.read_text())
            document["summary"] |= {"tpot_ms_p50": None, "tpot_ms_p99": None, "user_tok_s": None}
            for repeat in document["repeats"]:
                repeat["tpot_ms"] = {"n": 0, "mean": None, "p50": None, "p90": None, "p99": None}
                repeat["gpu"] = None
            path.write_text(json.dumps(document), encoding="utf-8")
    assert pictures(run) == {"arithmetic.output_tok_s.svg", "arithmetic.ttft_ms_p50.svg"}


def test_a_tangle_of_latencies_is_not_drawn(tmp_path: Path) -> None:
    run = study.Run(tmp_path)
    for number in range(29):
        name = f"e{number}"
        run.experiments.append(study.entry(name, "many", "model", "engine"))
        run.plans[name] = study.plan(name, "model", "engine", "marlin", ("nvfp4", "bf16"))
        run.add(f"experiments/{name}/plan.json", run.plans[name])
        run.add(f"experiments/{name}/weights.json", {**study.head("weights/1"), "files": []})
        figures = {level: ((10.0 * level,), 100.0, 10.0) for level in (1, 8)}
        run.measured(name, "marlin", figures)
    assert pictures(run) == {"many.output_tok_s.svg", "many.trade.svg"}
    picture = (tmp_path / "plots" / "many.output_tok_s.svg").read_text(encoding="utf-8")
    assert "and 22 more, in grey" in picture


def test_wrong_answers_are_in_no_picture(results: Path) -> None:
    picture = (results / "plots" / "dsv4-flash.output_tok_s.svg").read_text(encoding="utf-8")
    assert "nvfp4-cutlass" in picture
    assert "nvfp4-triton" not in picture


# Items and levels.


def test_the_best_level_within_limits_and_the_knee_are_told(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    name = next(e["name"] for e in run.experiments if e["name"] == "nvfp4-marlin")
    entry = next(e for e in run.experiments if e["name"] == name)
    points = {
        int(path.stem[1:]): json.loads(path.read_text())["summary"]
        for path in (tmp_path / "experiments" / name / "points").glob("c*.json")
    }
    largest = max(points, key=lambda level: points[level]["output_tok_s"])
    limit = points[largest]["ttft_ms_p99"]
    for allowed, level in ((limit, largest), (0.001, None)):
        entry["sweep"] = {"limits": {"ttft_ms_p99": allowed}}
        row = next(e for e in told(run)["experiments"] if e["name"] == name)
        assert (row["levels"]["limits"], row["levels"]["within"]) == (
            {"ttft_ms_p99": allowed},
            level,
        )
    build(run)
    page = (tmp_path / "report.md").read_text()
    assert re.search(r"within `ttft_ms_p99` ≤ \S+: no level", page)


def test_the_boots_of_a_level_are_one_point_with_a_verdict(tmp_path: Path) -> None:
    """Each boot's repeats stand in a file of their own, as the workflow writes them."""
    run = study.write(tmp_path)
    for path in [each for each in run.documents if each.parent.name == "points"]:
        if path.exists():
            whole = json.loads(path.read_text())
            later = [each for each in whole["repeats"] if each["boot"] != whole["boot"]]
            whole["repeats"] = [each for each in whole["repeats"] if each["boot"] == whole["boot"]]
            path.write_text(json.dumps(whole))
            again = path.with_suffix(".boot2.json")
            again.write_text(json.dumps(whole | {"repeats": later}))
            run.documents.append(again)
    apart, whole = told(run), told(study.write(tmp_path / "whole"))
    verdicts = [
        {
            (e["name"], p["concurrency"]): (p["against"] or {}).get("verdict")
            for e in document["experiments"]
            for p in e["points"]
        }
        for document in (apart, whole)
    ]
    assert verdicts[0] == verdicts[1]
    assert {"faster", "slower"} & set(verdicts[0].values())


def test_every_answer_that_was_not_right_says_when(document: dict[str, Any]) -> None:
    triton = next(each for each in document["experiments"] if each["name"] == "nvfp4-triton")
    whens = [item["when"] for item in triton["correctness"]["not_right"]]
    assert whens == ["after launch", "C = 8, before", "C = 8, during", "C = 8, after"]


def test_a_level_that_failed_is_named_and_leaves_the_others_standing(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    why = study.reason("server-gone", "the server stopped answering")
    point(tmp_path, "nvfp4-marlin", 16, status="failed", reason=why)
    document = told(run)
    assert ("nvfp4-marlin failed at C = 16: the server stopped answering.") in sentences(
        document, "dsv4-flash"
    )
    rankings = document["studies"][0]["rankings"]
    assert [each["winner"] for each in rankings] == [
        "nvfp4-marlin",
        "nvfp4-marlin",
        "nvfp4-cutlass",
    ]


def test_a_sweep_that_sinks_is_a_warning(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    summary = study.point("bf16-stock", 8, (90.0,), 61.0, 2.6)["summary"]
    point(tmp_path, "bf16-stock", 8, summary=summary)
    assert "90.0 tok/s at C = 8 is less than 173.0 at C = 1" in [
        warning["message"] for warning in told(run)["warnings"]
    ]


def test_a_misreading_is_told_with_what_reads_it_rightly(tmp_path: Path) -> None:
    run = study.write(tmp_path)
    run.add(
        "readings/nvfp4--june.json",
        {
            **study.head("reading/1"),
            "verdict": "misreads",
            "message": "SGLang 0.5.13.post1 reads the experts as fp8-block; they are nvfp4",
            "fixed_by": "PR #25820",
        },
    )
    build(run)
    assert (
        "- reading: misreads, SGLang 0.5.13.post1 reads the experts as fp8-block; "
        "they are nvfp4; read rightly by PR \\#25820"
    ) in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kept", [("schema", "status", "reason"), ("schema", "status")])
def test_documents_that_say_next_to_nothing_are_still_reported(
    tmp_path: Path, kept: tuple[str, ...]
) -> None:
    run = study.write(tmp_path)
    for path in run.documents:
        if path.exists():
            document = json.loads(path.read_text())
            path.write_text(json.dumps({key: document[key] for key in kept}), encoding="utf-8")
    build(run)
    assert len(sentences(told(run), "arithmetic")) >= 1


# Predictions and benchmarks.


def test_predictions_unlike_the_references_and_benchmarks_stand_beside_the_answers(
    tmp_path: Path,
) -> None:
    run = study.write(tmp_path)
    comparison = {
        "places": 1000,
        "mean_kl": 0.031,
        "tail_kl": 0.4,
        "top1": 0.962,
        "perplexity": 0.2,
    }
    run.add(
        "experiments/nvfp4-cutlass/reference.json",
        {
            "schema": "reference/1",
            "status": "wrong",
            "reason": {
                "class": "unlike-reference",
                "message": "unlike nvfp4-marlin: mean KL 0.031 nats, noise explains 0.002",
                "evidence": [],
                "hint": None,
            },
            "experiment": "nvfp4-cutlass",
            "reference": "nvfp4-marlin",
            "verdict": "differs",
            "figures": comparison,
            "bound": {"mean_kl": 0.002, "tail_kl": 0.1, "top1": 0.98},
            "batch": comparison | {"mean_kl": 0.001},
        },
    )
    score = {
        "task": "gsm8k",
        "metric": "exact_match,strict-match",
        "value": 0.75,
        "stderr": 0.1,
        "n": 20,
        "low": 0.531,
        "high": 0.888,
        "least": 0.9,
        "verdict": "below",
    }
    run.add(
        "experiments/nvfp4-cutlass/accuracy.json",
        {
            "schema": "accuracy/1",
            "status": "wrong",
            "reason": {
                "class": "accuracy-below",
                "message": "gsm8k: 0.750 of 20, at least 0.9 was wanted",
                "evidence": [],
                "hint": None,
            },
            "experiment": "nvfp4-cutlass",
            "boot": "b",
            "harness": {"name": "lm-eval", "version": "0.4.13"},
            "scores": [score],
        },
    )
    build(run)
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| [nvfp4-cutlass]")]
    (told_,) = [line for line in lines if "KL" in line]
    assert "KL 0.031, 96.2% alike (differs: nvfp4-marlin)" in told_
    assert "gsm8k 75.0% (53.1% to 88.8%) (below 0.9)" in told_
    document = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    (found,) = [e for e in document["experiments"] if e["name"] == "nvfp4-cutlass"]
    assert found["correctness"]["reference"]["verdict"] == "differs"
    assert found["correctness"]["accuracy"] == [score]
    assert (found["status"], found["stage"]) == ("wrong", "accuracy")
    (study_,) = [each for each in document["studies"] if each["name"] == found["study"]]
    ranked = {row["experiment"] for each in study_["rankings"] for row in each["order"]}
    assert "nvfp4-marlin" in ranked
    assert "nvfp4-cutlass" not in ranked
    answers = " ".join(study_["answer"])
    assert "nvfp4-cutlass starts but is wrong (gsm8k: 0.750 of 20, at least 0.9 was" in answers
    assert "nvfp4-cutlass unlike nvfp4-marlin (mean KL 0.031 nats" in answers
    (warning,) = [each for each in document["warnings"] if each["class"] == "unlike-reference"]
    assert warning["experiments"] == ["nvfp4-cutlass"]
