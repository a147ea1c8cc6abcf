"""The whole chain on a real server, from an empty engine folder: what the README promises."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import psutil
import pytest

from documents import problems
from project import Copy

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

CONFIG = """\
checkpoints:
  arithmetic-bf16: {path: resources/arithmetic-moe/bf16}
  arithmetic-nvfp4: {path: resources/arithmetic-moe/nvfp4}
  large: {repo: nvidia/DeepSeek-V4-Flash-NVFP4, revision: main}
engines:
  stock: {version: 0.5.23}
  patched: {version: 0.5.23, patches: [{file: config/patches/announce.patch}]}
experiments:
  bf16: &arithmetic
    study: arithmetic
    checkpoint: arithmetic-bf16
    engine: stock
    server: {max-total-tokens: 8192, max-running-requests: 16, mem-fraction-static: 0.3}
    env: {OMP_NUM_THREADS: 1}
    sweep: {concurrency: [1, 2], input_tokens: 64, output_tokens: 16, repeats: 2, min_seconds: 1}
  patched: {<<: *arithmetic, engine: patched, baseline: bf16, reference: bf16}
  nvfp4: {<<: *arithmetic, checkpoint: arithmetic-nvfp4}
  large:
    study: dsv4-flash
    checkpoint: large
    engine: stock
    requires: {gpus: 4, gpu_memory_gib: 80}
    server: {tp: 4, backend: marlin}
"""

TOKEN = "hf_ThisIsNoRealTokenButLooksLikeOneX"
SERVED = ("bf16", "patched")
ANNOUNCED = "This SGLang carries the patch announce of sglang-bringup."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The results of a run from nothing; everything that it left behind is gone afterwards."""
    home = tmp_path_factory.mktemp("run")
    copy = Copy(home)
    (home / "config/experiments.yaml").write_text(CONFIG)
    done = copy.snakemake("results/report.md", timeout_s=1100, HF_TOKEN=TOKEN)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    yield copy
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def results(run):
    return run.home / "results"


def load(path: Path):
    return json.loads(path.read_text())


def test_the_report_shows_the_answer_and_the_refusals(results):
    report = (results / "report.md").read_text()
    assert "391" in report
    assert "needs 4 GPUs of at least 80 GiB each; this machine has none" in report
    assert "NVFP4 needs an NVIDIA GPU" in report
    assert (results / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", SERVED)
def test_every_answer_is_right(results, name):
    probe = load(results / f"experiments/{name}/probe.json")
    assert (probe["gate"], probe["right"]) == ("pass", probe["asked"])
    assert probe["asked"] >= 21
    first = probe["items"][0]
    assert (first["prompt"], first["got"]) == (
        "What is 17*23? Answer with the number only.",
        "391",
    )


@pytest.mark.parametrize("name", SERVED)
def test_one_load_serves_every_stage(results, name):
    folder = results / "experiments" / name
    boot = load(folder / "server.json")["boot"]
    others = [load(folder / each)["boot"] for each in ("probe.json", "points/c1.json")]
    assert others == [boot, boot]
    assert not (folder / "server.1.log").exists()


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("level", [1, 2])
def test_a_point_is_measured_behind_its_own_gate(results, name, level):
    point = load(results / f"experiments/{name}/points/c{level}.json")
    assert (point["status"], point["gate"]["verdict"]) == ("ok", "pass")
    assert {"before", "during", "after"} <= set(point["gate"])
    assert [repeat["void"] for repeat in point["repeats"]] == [[], []]
    for repeat in point["repeats"]:
        assert repeat["output_tokens"] == 16 * repeat["completed"]
        assert repeat["completed"] >= 10 * level
        assert 0 < repeat["ttft_ms"]["p50"] < repeat["e2e_ms"]["p50"]
    assert len({repeat["seed"] for repeat in point["repeats"]}) == 2
    assert point["summary"]["output_tok_s"] > 1


def test_the_patch_is_in_what_ran_and_only_there(results):
    patch = load(results / "engines/patched/engine.json")["patches"][0]
    assert patch["outcome"] == "applied"
    assert ANNOUNCED in (results / "experiments/patched/server.log").read_text()
    assert ANNOUNCED not in (results / "experiments/bf16/server.log").read_text()


def test_a_patch_that_changes_nothing_predicts_what_its_reference_does(results):
    reference = load(results / "experiments/patched/reference.json")
    assert (reference["verdict"], reference["reference"]) == ("agrees", "bf16")
    assert reference["figures"]["places"] > 100
    assert reference["figures"]["mean_kl"] < 1e-3  # nats; another model is above 0.01
    assert not (results / "experiments/nvfp4/predictions.json").exists()


def test_what_a_cpu_cannot_run_is_refused_before_a_server_starts(results):
    plan = load(results / "experiments/nvfp4/plan.json")
    assert (plan["status"], plan["reason"]["class"]) == ("refused", "unsupported-format-on-cpu")
    assert plan["format"]["experts"] == "nvfp4"
    server = load(results / "experiments/nvfp4/server.json")
    assert server["status"] == "skipped"
    assert not (results / "experiments/nvfp4/server.log").exists()


def test_what_is_screened_out_costs_nothing(results):
    assert load(results / "experiments/large/plan.json")["status"] == "refused"
    assert not (results / "checkpoints/large").exists()
    assert [path.name for path in (results / "experiments/large").glob("*.json")] == ["plan.json"]


def test_every_document_fits_its_schema(results):
    documents = [
        path for path in results.rglob("*.json") if "logs" not in path.relative_to(results).parts
    ]
    assert len(documents) > 20
    for path in documents:
        assert problems(load(path)) == [], path


def test_no_secret_and_no_home_is_written(results):
    for path in results.rglob("*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert TOKEN not in text, path
            if "logs" not in path.parts and path.suffix != ".log":
                assert str(results.parent) not in text, path


def test_nothing_is_left_running(run):
    deadline = time.monotonic() + 30
    while left := processes_of(run.home):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_a_second_run_has_nothing_to_do(run):
    assert run.jobs() == set()


def processes_of(home: Path) -> list[str]:
    """Return the command lines of processes that were started from ``home``."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(home) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line[:200])
    return found
