"""What a run says of itself: what runs, how long it took last time, what is left, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from bringup import words
from bringup.progress import FOLLOWS, Job, Progress, Times, outlook, why

UPDATED = "Input files updated by another job: results/experiments/a/plan.json"
MISSING = "Missing output files: results/experiments/a/probe.json"


def job(rule: str, reason: str = UPDATED, **wildcards: str) -> Job:
    name = "-".join([rule, *wildcards.values()])
    return Job(rule, wildcards, f"results/{name}.json", reason)


POINT = job("point", experiment="bf16", concurrency="8")
AGAIN = job("point_again", experiment="bf16", concurrency="8", boot="2")


@pytest.fixture
def times(tmp_path: Path) -> Times:
    return Times(tmp_path / "times.jsonl")


@pytest.mark.parametrize(
    ("about", "name"),
    [
        (POINT, "bf16: point C = 8"),
        (AGAIN, "bf16: point C = 8, boot 2"),
        (job("detect", checkpoint="small"), "small: detect"),
        (job("reading", checkpoint="small", engine="stock"), "small--stock: reading"),
        (job("report"), "report"),
    ],
)
def test_a_job_is_called_by_what_it_is_about(about: Job, name: str) -> None:
    assert about.name == name


def test_a_run_tells_what_runs_how_long_it_took_and_what_is_left(tmp_path: Path) -> None:
    first = Progress(Times(tmp_path / "times.jsonl"))
    assert first.planned({"probe": 1, "point": 2, "report": 1}) == "4 jobs to do"
    assert first.started(1, POINT, 100.0) == "bf16: point C = 8 (for the first time)"
    assert first.finished(1, 135.2) == (
        "bf16: point C = 8 done in 35 s; 3 jobs left, at least 35 s of work"
    )

    second = Progress(Times(tmp_path / "times.jsonl"))
    assert second.planned({"point": 2}) == "2 jobs to do, about 1 min of work"
    assert second.started(7, POINT, 0.0) == "bf16: point C = 8 (35 s last time)"
    assert second.finished(7, 130.0) == (
        "bf16: point C = 8 done in 2 min 10 s; 1 job left, about 2 min of work"
    )


def test_the_last_job_says_so(times: Times) -> None:
    run = Progress(times)
    run.planned({"report": 1})
    run.started(0, job("report"), 0.0)
    assert run.finished(0, 2.5) == "report done in 2.5 s; all done"


def test_a_job_that_is_tried_again_is_timed_from_its_last_start(times: Times) -> None:
    run = Progress(times)
    run.planned({"point": 1})
    run.started(3, POINT, 0.0)
    run.started(3, POINT, 50.0)
    assert run.finished(3, 60.0) == "bf16: point C = 8 done in 10 s; all done"


def test_the_end_of_a_job_that_nobody_saw_start_is_not_told(times: Times) -> None:
    assert Progress(times).finished(9, 1.0) is None


@pytest.mark.parametrize("broken", ["not json", "[]", "3", '{"point": 3}', '["a", "b", "c"]'])
def test_broken_times_are_no_times(tmp_path: Path, broken: str) -> None:
    (tmp_path / "times.jsonl").write_text(broken)
    assert Times(tmp_path / "times.jsonl").of(POINT) is None


def test_many_runs_leave_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    for seconds in range(3):
        times = Times(path)
        for _ in range(600):
            times.remember(POINT, float(seconds))
    assert Times(path).of(POINT) == 2.0
    assert len(path.read_text().splitlines()) <= 1002


def test_times_that_cannot_be_written_are_kept_for_this_run(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("in the way")
    times = Times(tmp_path / "folder" / "times.jsonl")
    times.remember(POINT, 3.0)
    assert times.of(POINT) == 3.0


CODE = "Params have changed since last execution: Union of exclusive params before and now "


@pytest.mark.parametrize(
    ("reason", "words_"),
    [
        (UPDATED, FOLLOWS),
        (f"{MISSING}; {UPDATED}", "not there yet"),
        (
            "Updated input files: config/a.patch, config/b.patch",
            "config/a.patch and config/b.patch changed",
        ),
        (f"Code has changed since last execution; {UPDATED}", "its rule or script changed"),
        ("Set of input files has changed since last execution", "reads other files than before"),
        ("Forced execution", "forced"),
        (
            f"{CODE}across all output: before: {{'plan': '1', 'redact': 'x'}} "
            "now: {'plan': '2', 'redact': 'x', 'words': '3'} ",
            "plan and words changed",
        ),
        (
            f"{CODE}across all output: before: {{'input_tokens': 64}},{{'load': 'a'}} "
            "now: {'load': 'b'},{'input_tokens': 32} ",
            "input_tokens and load changed",
        ),
        (
            f"{CODE}across all output: before: <nothing exclusive> now: {{'when_wrong': 'run'}} ",
            "when_wrong changed",
        ),
        (
            f"{CODE}across all output: before: True now: False ",
            f"settings changed: {CODE.partition(': ')[2]}"
            "across all output: before: True now: False",
        ),
        ("something that a later Snakemake says", "something that a later Snakemake says"),
    ],
)
def test_reasons_in_a_few_words(reason: str, words_: str) -> None:
    assert why(reason) == words_


def test_a_long_reason_is_cut() -> None:
    assert why("x" * 500) == "x" * 160 + " …"


def test_a_dry_run_tells_those_with_the_same_to_do_together(times: Times) -> None:
    names = [f"e{number}" for number in range(100)]
    jobs = [job("engine", "Forced execution", engine="stock")]
    for name in names:
        jobs.append(job("probe", MISSING, experiment=name))
        jobs += [job("point", experiment=name, concurrency=str(level)) for level in (16, 1, 8)]
    jobs += [job("point_again", experiment="e99", concurrency="1", boot="2"), job("report")]
    times.remember(jobs[0], 200.0)
    assert list(outlook(jobs, times)) == [
        "403 jobs would run, about 3 min of work by what they took last time, "
        "402 of them never ran:",
        "  engine stock",
        "    engine (forced)",
        "  experiments e0, e1, e2, e3, e4, e5 and 93 more",
        "    probe (not there yet)",
        "    point C = 1, 8 and 16 (because of the above)",
        "  experiment e99",
        "    probe (not there yet)",
        "    point C = 1, boot 2, point C = 1, 8 and 16 (because of the above)",
        "  once",
        "    report (because of the above)",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1, "5 s"), (33, "35 s"), (59, "60 s"), (61, "1 min"), (4000, "67 min"), (9000, "2.5 h")],
)
def test_estimates_are_no_more_exact_than_they_are(seconds: float, shown: str) -> None:
    assert words.about(seconds) == shown
