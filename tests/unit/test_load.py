"""Figures of runs whose truth is known, and points measured on a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Answer, ScriptedServer, chat

from bringup import artifact, probes
from bringup.load import definitions, records, summary
from bringup.load.clients import arguments
from bringup.load.point import Gate, Target, measure
from bringup.load.records import Record
from bringup.load.workload import Job, Workload
from documents import checked

PROJECT = Path(__file__).resolve().parents[2]


def record(sent: float, **changes: Any) -> Record:
    """Return a request of the known truth: first token after 0.2 s, then 10 ms each, 50 tokens."""
    fields: dict[str, Any] = {
        "sent_s": sent,
        "first_token_s": sent + 0.2,
        "last_token_s": sent + 0.2 + 49 * 0.01,
        "input_tokens": 64,
        "output_tokens": 50,
        "first_chunk_tokens": 1,
        "longest_gap_s": 0.01,
        "error": None,
    }
    return Record(**fields | changes)


Make = Callable[[float], Record]


def closed_loop(rounds: int, concurrency: int, make: Make = record) -> list[Record]:
    """Return the requests of a closed loop in which every round lasts as long as one request."""
    length = make(0.0).e2e_s or 0.0
    return [make(n * length) for n in range(rounds) for _ in range(concurrency)]


# --- definitions: the faults that clients in the field were seen to have ---


def test_the_base_case_gives_the_truth() -> None:
    figures = definitions.figures(closed_loop(4, 4), 4)
    assert figures["ttft_ms"]["p50"] == pytest.approx(200)
    assert figures["tpot_ms"]["p99"] == pytest.approx(10)
    assert figures["e2e_ms"]["mean"] == pytest.approx(690)
    assert figures["output_tok_s"] == pytest.approx(4 * 50 / 0.69)
    assert figures["user_tok_s"] == pytest.approx(100)
    assert (figures["requests"], figures["completed"]) == (16, 16)
    assert figures["ttft_ms"]["n"] == 16


def test_a_server_that_stops_early_is_not_faster() -> None:
    """20 tokens of the 50 asked for: only those that came count."""

    def early(sent: float) -> Record:
        return record(sent, output_tokens=20, last_token_s=sent + 0.2 + 19 * 0.01)

    figures = definitions.figures(closed_loop(4, 4, early), 4)
    assert figures["output_tok_s"] == pytest.approx(4 * 20 / 0.39)
    assert figures["tpot_ms"]["p50"] == pytest.approx(10)


def test_tokens_that_come_with_the_first_took_no_time_of_their_own() -> None:
    """Chunks of 20: the first holds 20 tokens; the truth is 10 ms a token after it."""

    def bundled(sent: float) -> Record:
        first = sent + 0.2 + 19 * 0.01
        return record(sent, first_token_s=first, first_chunk_tokens=20, last_token_s=first + 0.3)

    figures = definitions.figures(closed_loop(2, 2, bundled), 2)
    assert figures["tpot_ms"]["p50"] == pytest.approx(10)


def test_failed_requests_give_no_tokens_and_no_times() -> None:
    failed = record(0.1, error="HTTP 200 and not one token", first_token_s=None, last_token_s=None)
    figures = definitions.figures([*closed_loop(2, 2), failed], 2)
    assert (figures["requests"], figures["completed"]) == (5, 4)
    assert figures["output_tokens"] == 200
    nothing = definitions.figures([failed], 1)
    assert nothing["output_tok_s"] is None
    assert nothing["ttft_ms"] == {"n": 0, "mean": None, "p50": None, "p90": None, "p99": None}


def test_one_token_answers_have_no_time_per_token() -> None:
    one = record(0.0, output_tokens=1, last_token_s=0.2)
    assert definitions.figures([one], 1)["tpot_ms"]["n"] == 0


def test_the_steady_window_leaves_out_ramp_and_tail() -> None:
    """Two rounds of four, and a last request that drags on alone."""
    tail = record(1.38, last_token_s=9.0)
    steady = definitions.steady_throughput([*closed_loop(2, 4), tail], 4)
    # From 0.2 s (the fourth first token) to 1.38 s (the last send): 49 + 50 tokens of each place,
    # and the first ones of the first round, at 0.2 s itself, are before the window.
    assert steady == pytest.approx(4 * 99 / (1.38 - 0.2))
    assert definitions.steady_throughput(closed_loop(1, 4), 4) is None  # no such time


def test_every_figure_has_its_meaning_in_words() -> None:
    assert set(definitions.FIGURES) < set(definitions.MEANING)
    assert set(definitions.MEANING) <= set(definitions.figures([record(0.0)], 1))


# --- records ---


def write_records(output: Path, sent: Sequence[Record], **client: Any) -> None:
    about = {"name": "scripted", "version": "1"} | client
    content = {
        "client": about,
        "start_s": 0.0,
        "clock_step_s": 0.0,
        "records": [vars(each) for each in sent],
    }
    output.write_text(json.dumps(content))


def test_records_are_read_back(tmp_path: Path) -> None:
    write_records(tmp_path / "r.json", [record(0.0), record(1.0, error="x")], cpu_share=0.5)
    run = records.read(tmp_path / "r.json")
    assert run.records == (record(0.0), record(1.0, error="x"))
    assert (run.client.name, run.client.cpu_share) == ("scripted", 0.5)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"client": {"nam": 1}, "records": []}'])
def test_a_file_of_another_kind_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=r"r\.json: not a load client's records"):
        records.read(tmp_path / "r.json")


# --- workload ---


def test_requests_fill_ten_rounds_and_the_asked_time() -> None:
    load = Workload(8, 64, 32, min_seconds=5)
    assert load.requests(None) == 80
    assert load.requests(per_second=4) == 80
    assert load.requests(per_second=20.1) == 101


def test_seeds_differ_between_repeats_and_levels_and_are_stable() -> None:
    load = Workload(8, 64, 32, 5)
    seeds = {load.seed(n) for n in (1, 2, 3, "warm-up")} | {Workload(1, 64, 32, 5).seed(1)}
    seeds |= {load.seed(1, boot=2), load.seed(1, boot=3)}
    assert len(seeds) == 7
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert load.seed(1) == Workload(8, 64, 32, 60).seed(1)


def test_arguments_ask_for_exact_lengths() -> None:
    argv = arguments(Job(Workload(8, 64, 32, 5), "http://h:1", "/m", 80, seed=7), "o.jsonl")
    pairs = dict(pairwise(argv))
    assert pairs["--random-range-ratio"] == "1"
    assert (pairs["--random-input-len"], pairs["--random-output-len"]) == ("64", "32")
    assert (pairs["--num-prompts"], pairs["--max-concurrency"]) == ("80", "8")
    assert pairs["--warmup-requests"] == "0"
    sampling = json.loads(pairs["--extra-request-body"])["sampling_params"]
    assert (sampling["max_new_tokens"], sampling["ignore_eos"]) == (32, True)


OPEN = Workload(8, 64, 32, min_seconds=500, rate=4.0)


def test_an_open_loop_sends_at_the_times_of_a_poisson_process() -> None:
    assert OPEN.requests(per_second=99) == 2000
    times = OPEN.schedule_s(2000, seed=1)
    assert times is not None and times[0] == 0 and times == sorted(times)
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.07)  # 3 standard errors of an exponential's mean
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.1)  # as an exponential's is
    assert OPEN.schedule_s(2000, seed=1) == times != OPEN.schedule_s(2000, seed=2)
    assert Workload(8, 64, 32, 5).schedule_s(80, seed=1) is None


def test_in_an_open_loop_times_count_from_when_a_request_was_due() -> None:
    """Sent half a second late, as all places were taken: its user waited for that, too."""
    late = record(1.5, scheduled_s=1.0)
    assert late.ttft_s == pytest.approx(0.7)
    assert late.e2e_s == pytest.approx(0.5 + 0.69)
    assert late.tpot_s == pytest.approx(0.01)
    figures = definitions.figures([record(n, scheduled_s=float(n)) for n in range(9)], 2)
    assert figures["steady_tok_s"] is None


# --- a whole point, on a scripted server and a scripted client ---

QUESTIONS = [
    probes.Question(f"q{n}", "s", f"What is {n}+{n}?", str(2 * n), "number", 16) for n in range(14)
]
WORKLOAD = Workload(concurrency=2, input_tokens=64, output_tokens=50, min_seconds=0)


def right_answers(path: str, body: dict[str, Any]) -> Answer:
    if path != "/v1/chat/completions":
        return Answer("", status=404 if path == "/metrics" else 200)
    prompt = body["messages"][0]["content"]
    question = next((each for each in QUESTIONS if each.prompt == prompt), None)
    return chat(question.answer if question else "filler")


class ScriptedClient:
    """Stands for the load client: writes the records of a server of known truth."""

    def __init__(self, make: Make = record, fails: Exception | None = None) -> None:
        self.runs: list[Job] = []
        self._make, self._fails = make, fails

    def __call__(self, job: Job, output: Path) -> None:
        self.runs.append(job)
        if self._fails:
            raise self._fails
        concurrency = job.workload.concurrency
        write_records(output, closed_loop(job.requests // concurrency, concurrency, self._make))


def point(
    folder: Path,
    script: Callable[[str, dict[str, Any]], Answer] = right_answers,
    client: Any = None,
    **gate: Any,
) -> tuple[artifact.Document, ScriptedServer, ScriptedClient]:
    client = client or ScriptedClient()
    with ScriptedServer(script) as server:
        target = Target("boot-1", server.url, "/model", folder / "server.log")
        asked = Gate(QUESTIONS, timeout_s=5, **gate)
        document = measure(
            "x", target, WORKLOAD, asked, repeats=3, client=client, folder=folder / "load"
        )
    checked(document)
    artifact.write(folder / "c2.json", document)
    return document, server, client


def test_a_point_of_a_good_server(tmp_path: Path) -> None:
    document, _, client = point(tmp_path)
    assert (document["status"], document["void"]) == ("ok", [])
    assert document["gate"]["verdict"] == "pass"
    assert {p: document["gate"][p]["asked"] for p in ("before", "during", "after")} == {
        "before": 12,
        "during": 12,
        "after": 12,
    }
    assert document["summary"]["n_repeats"] == 3
    assert document["summary"]["output_tok_s"] == pytest.approx(2 * 50 / 0.69, rel=1e-4)
    assert document["summary"]["tpot_ms_p50"] == pytest.approx(10)
    assert document["summary"]["spread"] == 0
    assert len(client.runs) == 4  # a warm-up and three repeats
    assert len({run.seed for run in client.runs}) == 4
    assert {repeat["boot"] for repeat in document["repeats"]} == {"boot-1"}


def test_acceptance_is_how_far_the_counters_moved_in_the_repeat() -> None:
    """Over the server's life it may be another: 300 tokens came of 100 steps in this repeat."""
    log = {"accept_len": 2.5, "decode_tok_s": None, "graph": "all", "running_max": 2}
    counters = {"generation_tokens": 300.0, "verify_calls": 100.0}
    moved, logged, none = (
        {"counters": counters, "server": log},
        {"counters": {"generation_tokens": 300.0}, "server": log},
        {"counters": None, "server": None},
    )
    assert [summary.accept_len(each) for each in (moved, logged, none)] == [3.0, 2.5, None]
    served = summary.served([moved, moved, none])
    assert served is not None and served["accept_len"] == 3.0


def test_counters_are_kept_as_what_they_moved_by(tmp_path: Path) -> None:
    asked = 0

    def counting(path: str, body: dict[str, Any]) -> Answer:
        nonlocal asked
        if path != "/metrics":
            return right_answers(path, body)
        asked += 1
        total = "sglang:generation_tokens_total"
        return Answer(f'{total}{{a="1"}} {1000.0 * asked}\n{total}{{a="2"}} 500.0\n')

    document, _, _ = point(tmp_path, counting)
    assert [each["counters"] for each in document["repeats"]] == [{"generation_tokens": 1000.0}] * 3
    assert document["repeats"][0]["void"] == []  # 20 requests of 50 tokens


def test_the_cache_is_flushed_before_each_repeat(tmp_path: Path) -> None:
    _, server, _ = point(tmp_path)
    assert sum(path == "/flush_cache" for path, _ in server.requests) == 3


def test_a_cache_that_can_not_be_flushed_voids_the_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bringup.load.point.FLUSH_PAUSE_S", 0)

    def busy(path: str, body: dict[str, Any]) -> Answer:
        return Answer("busy", 400) if path == "/flush_cache" else right_answers(path, body)

    document, _, _ = point(tmp_path, busy)
    assert document["void"][0].startswith("repeat 1: cache-cold: the prefix cache was not flushed")
    assert document["summary"]["output_tok_s"] is None


def test_a_server_that_answers_wrongly_is_not_measured(tmp_path: Path) -> None:
    def wrong(path: str, body: dict[str, Any]) -> Answer:
        return chat("!!!!!!!!") if "chat" in path else right_answers(path, body)

    document, _, client = point(tmp_path, wrong)
    assert (document["status"], document["gate"]["verdict"]) == ("wrong", "wrong")
    assert (document["repeats"], client.runs) == ([], [])
    measured, _, _ = point(tmp_path, wrong, measure_wrong=True)
    assert (measured["status"], len(measured["repeats"])) == ("wrong", 3)


def test_a_server_that_is_wrong_in_full_batches_only_is_caught(tmp_path: Path) -> None:
    client, asked = ScriptedClient(), []

    def script(path: str, body: dict[str, Any]) -> Answer:
        after_load = len(client.runs) == 4 and "chat" in path and not body.get("ignore_eos")
        asked.extend([path] if after_load else [])
        if after_load and len(asked) <= 12:  # those asked within the batch come first
            return chat("7777")
        return right_answers(path, body)

    document, _, _ = point(tmp_path, script, client)
    verdicts = [document["gate"][phase]["verdict"] for phase in ("before", "during", "after")]
    assert verdicts == ["pass", "wrong", "pass"]
    assert document["status"] == "wrong"


def test_errors_inside_http_200_complete_nothing(tmp_path: Path) -> None:
    """The warm-up shows it; what would hang until its time-out is not sent another 30 rounds."""

    def nothing(sent: float) -> Record:
        return record(sent, error="HTTP 200 and not one token", output_tokens=0)

    document, _, client = point(tmp_path, client=ScriptedClient(nothing))
    assert (document["status"], document["reason"]["class"]) == ("failed", "all-requests-failed")
    assert document["reason"]["message"] == (
        "warm-up: 4 of 4 requests failed; 4 x HTTP 200 and not one token"
    )
    assert (len(client.runs), document["repeats"]) == (1, [])
    assert document["summary"]["output_tok_s"] is None


def test_a_client_that_sends_nothing_is_another_outcome(tmp_path: Path) -> None:
    def silent(job: Job, output: Path) -> None:
        write_records(output, [])

    document, _, _ = point(tmp_path, client=silent)
    assert (document["status"], document["reason"]["class"]) == ("failed", "no-request-sent")


def test_a_repeat_in_which_all_fail_is_kept_and_the_last_one(tmp_path: Path) -> None:
    def failing_later(sent: float) -> Record:
        bad = len(client.runs) > 2  # after the warm-up and one repeat
        return record(sent, error="out of memory", output_tokens=0) if bad else record(sent)

    client = ScriptedClient(failing_later)
    document, _, _ = point(tmp_path, client=client)
    assert document["reason"]["message"].startswith("repeat 2: 20 of 20 requests failed")
    assert [bool(each["void"]) for each in document["repeats"]] == [False, True]
    assert document["summary"]["n_repeats"] == 1


def test_a_server_that_dies_keeps_what_was_measured(tmp_path: Path) -> None:
    flushes = 0

    def dying(path: str, body: dict[str, Any]) -> Answer:
        nonlocal flushes
        flushes += path == "/flush_cache"
        return Answer(drop=True) if flushes > 2 else right_answers(path, body)

    document, _, _ = point(tmp_path, dying)
    assert (document["status"], document["reason"]["class"]) == ("failed", "server-gone")
    assert len(document["repeats"]) == 2
    assert document["summary"]["n_repeats"] == 2


def test_a_client_that_can_not_run_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no worker"):
        point(tmp_path, client=ScriptedClient(fails=OSError("no worker")))


def test_a_skipped_point_follows_the_schema() -> None:
    cause = artifact.document("probe/1", "wrong", artifact.reason("answers-wrong", "0 of 9 right"))
    skipped = artifact.skipped("point/1", cause, experiment="x", concurrency=8)
    checked(skipped)
