"""What the scripts for GPUs compute: shapes of checkpoints, and the page of recorded runs."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
import yaml

from bringup import evidence

PROJECT = Path(__file__).parents[2]
ON_GPU, DOCS = PROJECT / "benchmarks/on_gpu", PROJECT / "docs"
RECORDED = Path(__file__).with_name("fixtures") / "on_gpu"
RUNS = [RECORDED / "one", RECORDED / "two", RECORDED / "three", RECORDED / "four"]
"""What the runs brought back, the oldest first."""


@pytest.fixture(scope="module", autouse=True)
def on_path():
    sys.path.insert(0, str(ON_GPU))
    yield
    sys.path.remove(str(ON_GPU))


@pytest.mark.parametrize(
    ("name", "parameters"),
    # As the hub counts them in the checkpoints' headers.
    [("Qwen3-30B-A3B", 30_532_122_624), ("Llama-3.1-8B", 8_030_261_248)],
)
def test_shapes_have_the_parameters_of_the_published_checkpoints(name, parameters):
    import shapes

    config = yaml.safe_load((ON_GPU / "shapes.yaml").read_text())[name]
    assert sum(math.prod(shape) for _, _, shape in shapes.tensors(config)) == parameters


def test_a_shape_is_a_checkpoint_whose_data_is_a_hole(tmp_path):
    import shapes

    config = yaml.safe_load((ON_GPU / "shapes.yaml").read_text())["Llama-3.1-70B-FP8"]
    size = shapes.write(tmp_path, config)
    file = tmp_path / "model.safetensors"
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    assert file.stat().st_size == 8 + length + size
    assert header["model.layers.0.mlp.down_proj.weight"]["dtype"] == "F8_E4M3"
    assert header["lm_head.weight"]["dtype"] == "BF16"
    ends = sorted(each["data_offsets"] for name, each in header.items() if name[0] != "_")
    assert all(one[1] == two[0] for one, two in pairwise(ends))
    assert file.stat().st_blocks * 512 < 1 << 20


def row(outcome: str, known: str | None, dense: str | None = None, **more) -> dict:
    expected = {"experts": {"format": "nvfp4", "asked": "marlin", "known": known}}
    if dense:
        expected["dense"] = {"format": "fp8-block", "asked": "auto", "known": dense}
    return {"outcome": outcome, "expected": expected, **more}


@pytest.mark.parametrize(
    ("outcome", "experts", "dense", "agrees"),
    [
        ("starts and is right", "recommended", None, "yes"),
        ("refuses", "refuses", None, "yes"),
        ("starts but is wrong", "starts-but-wrong", "works", "yes"),
        ("starts and is right", "refuses", None, "no"),
        ("refuses", "works", None, "no"),
        ("refuses", "works", "refuses", "yes"),
        ("starts and is right", "unknown", None, "unknown before"),
        ("not run", "works", None, "not run"),
        ("not ready in time", "refuses", None, "not settled"),
    ],
)
def test_the_table_is_held_against_what_happened(outcome, experts, dense, agrees):
    import verified

    assert verified.row_of("rows-x", row(outcome, experts, dense))["agrees"] == agrees


@pytest.mark.parametrize(
    ("kind", "outcome", "agrees"),
    [
        ("kernel-download", "kernels could not be downloaded", "not settled"),
        ("unsupported", "refuses", "yes"),
    ],
)
def test_kernels_that_could_not_be_fetched_say_nothing_of_the_backend(kind, outcome, agrees):
    import verified

    reason = {"class": kind, "message": "…", "hint": None}
    found = verified.row_of("rows-x", row("refuses", "refuses", reason=reason))
    assert (found["outcome"], found["agrees"]) == (outcome, agrees)


def test_a_corrupted_scale_is_seen_by_divergence_or_by_questions():
    import verified

    def measured(outcome, kl):
        return row(outcome, "works", against_reference={"kl_mean": kl, "top1_agreement": 0.9})

    found = [
        verified.row_of(name, each)
        for name, each in {
            "rows-nvfp4--marlin": measured("starts and is right", 0.001),
            "rows-nvfp4--marlin@nvfp4-layer": measured("starts but is wrong", 0.5),
            "rows-nvfp4--marlin@nvfp4-expert": measured("starts and is right", 0.002),
        }.items()
    ]
    layer, expert = verified.power(found)
    assert (layer["by_divergence"], layer["by_questions"]) == (True, True)
    assert (expert["by_divergence"], expert["by_questions"]) == (False, False)
    assert expert["times"] == pytest.approx(2)
    assert verified.one_of([layer, expert]) == [0, 1]


def test_rows_come_in_the_order_that_is_asked_for():
    import rows

    assert rows.ordered(["a", "b", "c"], ["c", "c@broken"]) == ["c", "c@broken", "a", "b"]
    with pytest.raises(SystemExit, match="no plan of d"):
        rows.ordered(["a"], ["d"])


def test_a_forced_plan_leaves_to_the_build_what_was_asked_to_be_automatic():
    import rows

    flags = [
        {"flag": "tp-size", "value": 2, "by": "user", "why": "config"},
        {"flag": "moe-runner-backend", "value": "marlin", "by": "table", "why": "known"},
    ]
    argv = ["-m", "x", "--tp-size", "2", "--moe-runner-backend", "marlin", "--enable-metrics"]
    plan = rows.untouched({"flags": flags, "argv": argv})
    assert plan["argv"] == ["-m", "x", "--tp-size", "2", "--enable-metrics"]
    assert [flag["flag"] for flag in plan["flags"]] == ["tp-size"]


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict:
    """Return what the program makes of the recorded runs."""
    import verified

    return verified.gathered(RUNS, tmp_path_factory.mktemp("x") / "x")


def test_the_page_in_the_docs_is_what_the_program_makes_of_the_recorded_runs(told):
    import verified

    assert json.loads((DOCS / "verified.json").read_text()) == json.loads(json.dumps(told))
    assert (DOCS / "verified.md").read_text() == verified.page(told)


def test_recorded_rows_tell_which_kernels_ran_against_what_was_asked(told):
    rows = {row["row"]: row for row in told["rows"] if not row["corrupted"]}
    int4 = rows["rows-int4--cutlass"]
    assert (int4["asked"], int4["used"]["experts"]) == ("cutlass", "marlin")
    assert int4["verdicts"]["experts"] == "fell-back"
    assert "Marlin" in int4["sentence"]
    assert rows["rows-fp8-linear--deep_gemm"]["used"]["experts"] == "deep_gemm"
    assert rows["rows-fp8-linear--cutlass"]["outcome"] == "starts but is wrong"
    assert not [row for row in rows.values() if row["agrees"] == "no"]


def test_a_layers_corrupted_scales_were_seen_on_each_kernel(told):
    layers = [row for row in told["power"] if row["corrupted"].endswith("-layer")]
    assert {row["used"] for row in layers} == {"marlin", "triton", "deep_gemm", "cutlass"}
    assert all(row["by_divergence"] or row["by_questions"] for row in layers)


def test_one_experts_corrupted_scale_is_at_the_limit_of_what_divergence_shows(told):
    """KL of the clean form and of the corrupted one, in nats, of the run's own rows.json."""
    experts = {row["corrupted"] + "@" + row["used"]: row for row in told["power"]}
    for name, clean, corrupted, seen in [
        ("fp8-expert@deep_gemm", 0.05317, 0.16076, True),
        ("fp8-expert@triton", 0.04738, 0.14384, True),
        ("int4-expert@marlin", 0.08142, 0.16188, False),
        ("nvfp4-expert@marlin", 0.08990, 0.17848, False),
    ]:
        row = experts[name]
        assert row["times"] == pytest.approx(corrupted / clean, rel=1e-3)
        assert (row["by_divergence"], row["by_questions"]) == (seen, False)


def test_rows_of_the_later_runs_on_one_gpu(told):
    rows = {row["row"].removeprefix("rows-"): row for row in told["rows"] if not row["corrupted"]}
    used = {
        name: (rows[name]["used"]["experts"], rows[name]["verdicts"]["experts"])
        for name in (
            "bf16--marlin",
            "bf16--triton_kernel",
            "fp8-gemm--deep_gemm--triton",
            "int4--triton",
            "int4--deep_gemm",
        )
    }
    assert used == {
        "bf16--marlin": ("triton", "fell-back"),
        "bf16--triton_kernel": ("triton_kernel", "confirmed"),
        "fp8-gemm--deep_gemm--triton": ("triton", "confirmed"),
        "int4--triton": ("triton", "confirmed"),
        "int4--deep_gemm": ("marlin", "fell-back"),
    }
    assert rows["fp8-gemm--deep_gemm--triton"]["used"]["dense"] == "deep_gemm"
    assert rows["fp8--flashinfer_cutlass"]["outcome"] == "refuses"
    unsettled = {name for name, row in rows.items() if row["agrees"] == "not settled"}
    trtllm = {f"{form}--flashinfer_trtllm" for form in ("bf16", "fp8", "int4")}
    assert unsettled == trtllm | {"bf16--flashinfer_cutlass"}
    assert not any(row["outcome"] == "not run" for row in rows.values())


def test_what_the_workflow_added_in_the_recorded_run(told):
    """178.806 s and 170.472 s by steps.txt; loads of 24.3 s and 23.65 s."""
    assert told["overhead"]["ratio"] == round(178.806 / 170.472, 3) <= 1.05
    assert told["overhead"]["ratio_of_same_load"] == round((178.806 - 24.3 + 23.65) / 170.472, 3)
    for side in ("workflow_s", "by_hand_s"):
        parts = sum(each[side] or 0 for each in told["overhead"]["parts"])
        assert parts == pytest.approx(told["overhead"][side], abs=0.01)
    edits = {name: [job for job, _ in each["jobs"]] for name, each in told["edits"].items()}
    assert edits["level"] == ["point C = 8", "report"]
    assert edits["backend"][2:5] == ["launch", "probe", "point C = 16"]
    assert edits["patch"][:2] == ["engine", "reading"]


def test_predicted_memory_was_within_the_margins(told):
    import verified

    assert len(told["memory"]) == 3
    for shape in told["memory"]:
        assert abs(shape["weights_gib_off"]) <= verified.WEIGHTS_MARGIN
        assert abs(shape["kv_tokens_off"]) <= verified.KV_MARGIN


def test_the_recorded_pair_and_the_server_over_both_gpus(told):
    assert told["side_by_side"]["commands"]["ratio"] >= 1.9
    assert told["over_both"]["traces"] == told["over_both"]["gpus"] == 2
    assert any("AllReduce" in kernel["name"] for kernel in told["over_both"]["kernels"])
    assert told["over_both"]["evicted"] == ["two--marlin"]


@pytest.fixture(scope="module", params=[("one", 14, 16), ("three", 4, 14)], ids=["one", "three"])
def forced(request, tmp_path_factory) -> tuple[Path, int, int]:
    """Return the folder of forced rows (what came of each, and its server's log).

    And how many refused, and how many were right.
    """
    run, refused, right = request.param
    folder = tmp_path_factory.mktemp("rows")
    archive = RECORDED / run / "rows.tar.xz"
    subprocess.run(["tar", "-xJf", archive, "-C", folder], check=True)
    return folder / "rows", refused, right


def test_each_recorded_refusal_is_told_from_its_log(forced):
    forced, count, _ = forced
    rows = json.loads((forced / "rows.json").read_text())
    refused = {name: row["reason"] for name, row in rows.items() if row["outcome"] == "refuses"}
    assert len(refused) == count
    for name, reason in refused.items():
        found = evidence.diagnose(forced / name / "server.log", exit_code=1)
        assert found["class"] == reason["class"], name
        assert found["message"].split(": ")[-1] == reason["message"].split(": ")[-1], name


def test_no_server_that_was_right_has_a_log_that_says_it_failed(forced):
    forced, _, count = forced
    rows = json.loads((forced / "rows.json").read_text())
    right = [name for name, row in rows.items() if row["outcome"] == "starts and is right"]
    assert len(right) == count
    for name in right:
        assert evidence.failure(forced / name / "server.log", ready=True) is None, name


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    archive = RECORDED / "one/results.tar.xz"
    subprocess.run(["tar", "-xJf", archive, "-C", folder], check=True)
    return folder / "results"


def test_the_reports_figures_are_those_of_the_raw_records(results):
    """Worked out anew from when each request was sent and its tokens came."""
    with (DOCS / "verified/points.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["output_tok_s"]]
    assert {row["experiment"] for row in rows} == {
        "bf16--triton",
        "int4--cutlass",
        "nvfp4--marlin",
    }
    for row in rows:
        logs = results / "experiments" / row["experiment"] / "logs"
        runs = [
            json.loads(path.read_text())["records"]
            for path in logs.glob(f"c{row['concurrency']}.[0-9]*.records.json")
        ]
        assert len(runs) == int(row["n_repeats"])
        assert float(row["output_tok_s"]) == pytest.approx(median(map(speed, runs)), rel=1e-3)
        ttft = median(
            median(1000 * (each["first_token_s"] - each["sent_s"]) for each in run) for run in runs
        )
        assert float(row["ttft_ms_p50"]) == pytest.approx(ttft, rel=1e-3)


def speed(run: list[dict]) -> float:
    """Return the output tokens of a run by the time from its first send to its last token."""
    tokens = sum(each["output_tokens"] for each in run)
    return tokens / (max(e["last_token_s"] for e in run) - min(e["sent_s"] for e in run))


def test_the_reports_words_are_in_its_raw_files(results):
    report = (DOCS / "verified/report.md").read_text()
    for name in ("bf16--triton", "int4--cutlass", "nvfp4--marlin"):
        folder = results / "experiments" / name
        probe = json.loads((folder / "probe.json").read_text())
        right = [item for item in probe["items"] if item["got"].strip() == item["expected"]]
        assert f"{len(right)}/{len(probe['items'])}" == "29/29"
        server = json.loads((folder / "server.json").read_text())
        assert f"ready after {server['load_s']:.0f} s, boot `{server['boot']}`" in report
    assert "int4--cutlass was asked for cutlass for its experts and ran marlin" in report
    trace = json.loads((results / "experiments/int4--cutlass/kernels.json").read_text())
    products = [k for k in trace["kernels"] if (k["module"], k["role"]) == ("experts", "gemm")]
    assert products
    assert all("marlin_moe::Marlin" in kernel["name"] for kernel in products)


@pytest.fixture
def timed(tmp_path) -> Path:
    """A run of the workflow and by hand: 78 s and 71 s, whose parts are round figures."""
    logs, results = tmp_path / "logs/logs", tmp_path / "overheads/overheads/results/experiments"
    whole = results / "whole--triton"
    for folder in (logs, whole / "points"):
        folder.mkdir(parents=True)
    by_hand = {"load_s": 30.0, "probe_s": 1.0, "points_s": {"1": 20.0, "16": 19.0}, "wall_s": 70.0}
    (tmp_path / "overheads/overheads/by-hand.json").write_text(json.dumps(by_hand))
    (whole / "server.json").write_text(json.dumps({"load_s": 34.0}))
    for level, repeats in ((1, [7.5, 7.5]), (16, [7.0, 8.0])):
        point = {"repeats": [{"duration_s": seconds} for seconds in repeats]}
        (whole / f"points/c{level}.json").write_text(json.dumps(point))
    lines = ["workflow: exit 0, 78000 ms, at 90 s", "by-hand: exit 0, 71000 ms, at 161 s"]
    lines += ["level: exit 0, 44000 ms, at 200 s", "backend: exit 124, 60000 ms, at 260 s"]
    (logs / "steps.txt").write_text("\n".join(lines))
    jobs = [["launch", "server.json", 35.5], ["probe", "probe.json", 1.5]]
    jobs += [["point", "points/c1.json", 20.6], ["point", "points/c16.json", 19.4]]
    folder = "results/experiments/whole--triton"
    told = [json.dumps([rule, f"{folder}/{file}", seconds]) for rule, file, seconds in jobs]
    told.append(json.dumps(["probe", "results/experiments/small--triton/probe.json", 1.2]))
    (logs / "times.json").write_text("\n".join(told))
    (logs / "level.log").write_text(
        "09:00:00  2 jobs to do, about 20 s of work\n"
        "09:00:01  small--triton: point C = 8 (for the first time)\n"
        "small--triton: loading for 10 s: (nothing in its log yet)\n"
        "09:00:40  small--triton: point C = 8 done in 38 s; 1 job left, about 5 s of work\n"
        "09:00:42  report done in 1.3 s; all done\n"
    )
    return tmp_path


def test_the_workflows_time_is_held_against_that_by_hand(timed):
    import verified

    found = verified.overhead(timed)
    assert found["ratio"] == round(78 / 71, 3)
    assert found["ratio_of_same_load"] == round(74 / 71, 3)
    assert found["ratio_of_same_work"] is None
    parts = {each["part"]: (each["workflow_s"], each["by_hand_s"]) for each in found["parts"]}
    assert parts == {
        "the server's load": (34.0, 30.0),
        "launch, beyond it": (1.5, None),
        "probe": (1.5, 1.0),
        "C = 1": (20.6, 20.0),
        "C = 16": (19.4, 19.0),
        "start, end, between jobs": (1.0, 1.0),
    }
    assert verified.edits(timed) == {
        "level": {"seconds": 44.0, "jobs": [["point C = 8", "38 s"], ["report", "1.3 s"]]}
    }


def test_repeats_that_took_longer_by_chance_are_told_apart_from_what_the_workflow_adds(timed):
    import verified

    file = timed / "overheads/overheads/by-hand.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"repeats_s": {"1": 14.5, "16": 15.0}})
    )
    found = verified.overhead(timed)
    assert found["ratio_of_same_work"] == round((78 - 4 - 0.5) / 71, 3)


def test_what_a_later_run_did_not_finish_stays_as_it_was(tmp_path):
    import verified

    runs = []
    for number, outcomes in enumerate(
        [
            {"rows-a": "refuses", "rows-b": "not run", "rows-c": "starts and is right"},
            {"rows-a": "starts and is right", "rows-b": "refuses", "rows-c": "not run"},
        ]
    ):
        folder = tmp_path / str(number)
        (folder / "rows/rows").mkdir(parents=True)
        found = {name: {"outcome": outcome} for name, outcome in outcomes.items()}
        (folder / "rows/rows/rows.json").write_text(json.dumps(found))
        runs.append(folder)
    found = verified.latest(map(verified.rows_of, runs))
    assert [(row["row"], row["outcome"], row["run"]) for row in found] == [
        ("rows-a", "starts and is right", 2),
        ("rows-b", "refuses", 2),
        ("rows-c", "starts and is right", 1),
    ]


def test_what_was_not_run_says_so(tmp_path):
    import verified

    nothing = tmp_path / "nothing"
    nothing.mkdir()
    told = verified.gathered([nothing], tmp_path / "scratch")
    page = verified.page(told)
    assert page.count("not run") >= 6
    assert "None" not in page
