"""The load client, as a process, against servers whose truth is known."""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Answer, ScriptedServer

from bringup.load import clients, definitions, direct, records
from bringup.load.prompts import Prompts
from bringup.load.workload import Job, Workload

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "client_truth"
sys.path.insert(0, str(BENCHMARK))

from run import running_server  # noqa: E402
from run import served as served_by  # noqa: E402

LOAD = Workload(concurrency=4, input_tokens=16, output_tokens=50, min_seconds=0)
CHAT = Prompts("two", "0" * 64, ([{"role": "user", "content": "Why?"}],) * 2)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server of known speed, and the folder of what it did."""
    folder = tmp_path_factory.mktemp("truth")
    with running_server(folder, processes=1) as url:
        yield url, folder


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A checkpoint of which only the size of the vocabulary is there."""
    (tmp_path / "config.json").write_text('{"vocab_size": 400}')
    return str(tmp_path)


def run(url: str, model: str, load: Workload = LOAD, requests: int = 8, **more: Any) -> records.Run:
    output = Path(model) / "records.json"
    clients.direct(Job(load, url, model, requests, seed=7, **more), output)
    return records.read(output)


@pytest.mark.parametrize("prompts", [None, CHAT], ids=["tokens", "texts"])
@pytest.mark.parametrize(
    "scenario", ["base", "early-stop", "chunks-of-20", "bundled-first", "role-chunk"]
)
def test_figures_are_what_the_server_did(
    truth: tuple[str, Path], model: str, scenario: str, prompts: Prompts | None
) -> None:
    url, folder = truth
    name = f"{scenario}-{bool(prompts)}"
    seen = run(f"{url}/{scenario}/{name}", model, replace(LOAD, prompts=prompts))
    did, late_s = served_by(folder, name, requests=8)
    ours, real = definitions.figures(seen.records, 4), definitions.figures(did, 4)
    assert late_s is not None
    assert ours["completed"] == 8
    assert ours["output_tokens"] == real["output_tokens"] == (160 if "early" in scenario else 400)
    assert ours["tpot_ms"]["p50"] == pytest.approx(real["tpot_ms"]["p50"], rel=0.03)
    assert ours["ttft_ms"]["p50"] == pytest.approx(real["ttft_ms"]["p50"], abs=30)
    assert ours["output_tok_s"] == pytest.approx(real["output_tok_s"], rel=0.05)
    assert {each.finish_reason for each in seen.records} == {"length"}
    assert seen.client.ttft_late_ms is not None and seen.client.cpu_share is not None
    assert abs(seen.clock_step_s or 0) < 0.05


def test_usage_arrivals_and_cached_tokens_are_the_servers(
    truth: tuple[str, Path], model: str
) -> None:
    first = run(f"{truth[0]}/bundled-first/usage", model, requests=1).records[0]
    assert (first.input_tokens, first.output_tokens, first.cached_tokens) == (16, 50, 0)
    assert first.first_chunk_tokens == 20
    assert first.arrivals is not None and [n for _, n in first.arrivals] == [20, 40, 50]
    assert first.arrivals[0][0] == pytest.approx(390, abs=60)


def test_long_runs_keep_no_arrivals_and_the_same_times(model: str) -> None:
    """Ten million tokens would fill the memory; first, last and longest gap are enough."""
    events = [
        json.dumps({"text": "a" * n, "meta_info": {"prompt_tokens": 4, "completion_tokens": n}})
        for n in (1, 4, 9)
    ]
    seen = []
    for keeps in (True, False):
        request = direct.Request(None, keeps, sent_s=100.0)
        for event, now in zip(events, (100.5, 100.75, 101.75), strict=True):
            request.chunk(event.encode(), now, chat=False)
        seen.append(request.record(90.0, chat=False))
    assert seen[0]["arrivals"] == [[500.0, 1], [750.0, 4], [1750.0, 9]]
    assert seen[1] == seen[0] | {"arrivals": None}
    assert (seen[1]["first_token_s"], seen[1]["last_token_s"]) == (10.5, 11.75)
    assert (seen[1]["longest_gap_s"], seen[1]["output_tokens"]) == (1.0, 9)


def test_errors_inside_http_200_are_errors(truth: tuple[str, Path], model: str) -> None:
    seen = run(f"{truth[0]}/error-in-200/e", model)
    assert {each.error for each in seen.records} == {"error inside HTTP 200: out of memory"}
    assert definitions.figures(seen.records, 4)["completed"] == 0


def test_an_open_loop_sends_when_requests_are_due(truth: tuple[str, Path], model: str) -> None:
    """Twenty a second for half a second each: ten run at once, and none waits for another."""
    load = replace(LOAD, concurrency=40, rate=20.0, output_tokens=30)
    seen = run(f"{truth[0]}/base/open", model, load, requests=20)
    due = load.schedule_s(20, seed=7)
    assert due is not None
    for record, asked in zip(seen.records, due, strict=True):
        assert record.scheduled_s == pytest.approx(asked, abs=1e-6)
        assert 0 <= record.sent_s - asked < 0.1


def test_what_waits_for_a_place_is_timed_from_when_it_was_due(
    truth: tuple[str, Path], model: str
) -> None:
    """One place, 0.69 s an answer, and all eight are due at nearly the same time."""
    load = replace(LOAD, concurrency=1, rate=1000.0)
    seen = run(f"{truth[0]}/base/queue", model, load, requests=3)
    waits = [each.ttft_s for each in seen.records]
    assert waits == pytest.approx([0.2, 0.2 + 0.69, 0.2 + 2 * 0.69], abs=0.15)


def test_a_refusal_is_an_error_with_what_the_server_said(model: str) -> None:
    with ScriptedServer(lambda path, body: Answer({"error": "queue is full"}, 503)) as server:
        seen = run(server.url, model)
    assert {each.error for each in seen.records} == {'HTTP 503: {"error": "queue is full"}'}
    assert len(seen.records) == 8


def test_a_server_that_hangs_up_is_an_error_of_that_request_only(model: str) -> None:
    count = iter(range(100))

    def script(path: str, body: dict[str, Any]) -> Answer:
        meta = {"prompt_tokens": 16, "completion_tokens": 1, "finish_reason": {"type": "length"}}
        event = json.dumps({"text": "a", "meta_info": meta})
        return Answer(drop=True) if next(count) == 2 else Answer(f"data: {event}\n\n")

    with ScriptedServer(script) as server:
        seen = run(server.url, model)
    errors = [each.error for each in seen.records if each.error]
    assert len(seen.records) == 8 and len(errors) == 1
    assert "hung up" in errors[0] or "Connection" in errors[0]


def test_an_aborted_answer_is_an_error(model: str) -> None:
    why = {"type": "abort", "message": "KV cache is full"}
    meta = {"prompt_tokens": 16, "completion_tokens": 3, "finish_reason": why}
    event = json.dumps({"text": "abc", "meta_info": meta})
    with ScriptedServer(lambda path, body: Answer(f"data: {event}\n\n")) as server:
        seen = run(server.url, model, requests=4)
    assert {each.error for each in seen.records} == {"aborted: KV cache is full"}


def test_a_request_that_hangs_is_given_up(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workload, "timeout_s", 0.2)
    over = threading.Event()
    with ScriptedServer(lambda path, body: Answer("", wait=over)) as server:
        seen = run(server.url, model, requests=4)
        over.set()
    assert {each.error for each in seen.records} == {"no end after 0.2 s"}


def test_the_key_is_sent_and_the_request_is_as_asked(model: str) -> None:
    with ScriptedServer(lambda path, body: Answer({}, 400)) as server:
        run(server.url, model, requests=1, api_key="k-123")
        path, body = server.requests[0]
    assert path == "/generate"
    assert (len(body["input_ids"]), body["stream"]) == (16, True)
    assert set(body["input_ids"]) <= set(range(100, 300))
    sampling = body["sampling_params"]
    assert (sampling["max_new_tokens"], sampling["ignore_eos"]) == (50, True)


def test_without_a_server_there_is_no_run(model: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="the load client failed: ConnectionRefusedError"):
            run(f"http://127.0.0.1:{free.getsockname()[1]}", model)


@pytest.mark.parametrize(("vocabulary", "length"), [(1000, 8), (5, 8), (40, 1), (3, 4)])
def test_prompts_have_the_length_asked_and_beginnings_of_their_own(
    vocabulary: int, length: int
) -> None:
    ids = list(range(100, 100 + vocabulary))
    count = min(300, vocabulary**length)

    def draw(seed: int) -> list[list[int]]:
        made = direct.random_prompts(random.Random(seed), ids, length, count)
        return [[int(each) for each in prompt.split(b",")] for prompt in made]

    prompts = draw(1)
    assert all(len(prompt) == length for prompt in prompts)
    width = direct.heads_needed(vocabulary, count)
    assert len({tuple(prompt[:width]) for prompt in prompts}) == count
    assert {token for prompt in prompts for token in prompt} <= set(ids)
    assert draw(1) == prompts
    assert any(draw(seed) != prompts for seed in range(2, 12))
