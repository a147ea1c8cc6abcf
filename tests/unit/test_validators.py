"""Each validator sees the fault that it is for, and nothing on a good run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bringup import validators
from bringup.load import definitions
from bringup.load.prompts import Prompts
from bringup.load.records import Client, Record, Run
from bringup.load.workload import Workload
from bringup.validators import Evidence

WORKLOAD = Workload(concurrency=2, input_tokens=64, output_tokens=50, min_seconds=2)
TRAFFIC = {
    "decode_lines": 20,
    "decode_tok_s": 200.0,
    "running_max": 2,
    "queue_max": 0,
    "graph": "all",
    "accept_len": None,
    "prompt_tokens": 8 * 64,
    "cached_tokens": 0,
}
GPU = {"slowed": {"power cap": 0.01}, "newcomers": 0}
COUNTERS = {"generation_tokens": 400.0}
CLIENT = Client("c", "1", 0.2, loop_late_ms_p99=0.5, loop_late_ms_max=3.0, ttft_late_ms=0.1)


def requests(**changes: Any) -> list[Record]:
    """Eight requests, two at a time: first token after 0.2 s, 50 tokens, 0.69 s in all."""
    fields: dict[str, Any] = {
        "input_tokens": 64,
        "output_tokens": 50,
        "first_chunk_tokens": 1,
        "longest_gap_s": 0.01,
        "error": None,
        "finish_reason": "length",
        "cached_tokens": 0,
    } | changes
    starts = [0.69 * n for n in range(4) for _ in range(2)]
    return [Record(t, t + 0.2, t + 0.69, **fields) for t in starts]


def evidence(records: list[Record] | None = None, **changes: Any) -> Evidence:
    records = requests() if records is None else records
    good = Evidence(
        workload=WORKLOAD,
        run=Run(changes.pop("client", CLIENT), tuple(records), 0.0, changes.pop("step_s", 0.0)),
        figures=definitions.figures(records, WORKLOAD.concurrency),
        asked=8,
        flushed=True,
        traffic=TRAFFIC,
        counters=COUNTERS,
        gpu=GPU,
        on_gpu=True,
        cpu_wait_share=0.0,
    )
    return replace(good, **changes)


def verdicts(seen: Evidence) -> dict[str, str]:
    """Return what isn't ok: validator → verdict."""
    found = {f.name: f.verdict for f in validators.check(seen) if f.verdict != "ok"}
    if seen.workload.rate is None:
        assert found.pop("sent-when-due") == "unchecked"
    return found


def test_a_good_run_passes_every_validator() -> None:
    assert verdicts(evidence()) == {}


INSTANT = replace(requests()[0], first_token_s=0.0)
FAILED = replace(requests()[0], error="Server disconnected", output_tokens=0, first_token_s=None)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (evidence(asked=9), {"all-sent": "void"}),
        (
            evidence(requests(output_tokens=20), counters={"generation_tokens": 160.0}),
            {"output-lengths": "void"},
        ),
        (evidence(requests(input_tokens=60)), {"input-lengths": "void"}),
        (evidence([INSTANT, *requests()[1:]]), {"first-tokens": "void"}),
        (evidence(flushed=False), {"cache-cold": "void"}),
        (evidence(requests(cached_tokens=1)), {"cache-cold": "flag"}),
        (evidence(requests(cached_tokens=16)), {"cache-cold": "void"}),
        (evidence(requests(finish_reason="stop")), {"finish-reasons": "void"}),
        (evidence(step_s=-0.12), {"clock-steady": "flag"}),
        (evidence(step_s=3600.0), {"clock-steady": "void"}),
        (evidence(depends_on_text=["speculative decoding"]), {"prompts-like-use": "flag"}),
        (evidence(counters={"generation_tokens": 320.0}), {"counters-agree": "void"}),
        (evidence(counters=COUNTERS | {"retracted": 3.0}), {"none-retracted": "flag"}),
        (evidence(traffic=TRAFFIC | {"graph": "none"}), {"graphs-used": "flag"}),
        (evidence(traffic=TRAFFIC | {"graph": "some"}), {"graphs-used": "flag"}),
        (evidence(traffic=TRAFFIC | {"running_max": 1}), {"batch-reached": "flag"}),
        (evidence(traffic=TRAFFIC | {"decode_tok_s": 80.0}), {"log-agrees": "flag"}),
        (evidence(workload=replace(WORKLOAD, min_seconds=60)), {"long-enough": "flag"}),
        (evidence(client=replace(CLIENT, loop_late_ms_p99=45.0)), {"client-in-time": "flag"}),
        (evidence(gpu=GPU | {"slowed": {"hardware slowdown": 0.5}}), {"clocks-held": "flag"}),
        (evidence(gpu=GPU | {"newcomers": 1}), {"gpus-alone": "void"}),
        (evidence(cpu_wait_share=0.4), {"cpu-at-hand": "flag"}),
        (evidence(client=replace(CLIENT, ttft_late_ms=2.1)), {"client-in-time": "flag"}),
        (evidence(client=replace(CLIENT, cpu_share=0.97)), {"client-not-the-limit": "flag"}),
    ],
)  # fmt: skip
def test_each_fault_is_seen_by_its_validator(seen: Evidence, expected: dict[str, str]) -> None:
    assert verdicts(seen) == expected


def test_a_throughput_that_its_requests_can_not_give_is_void() -> None:
    """57,016 tok/s were printed for errors inside HTTP 200."""
    inflated = dict(evidence().figures) | {"output_tok_s": 57016.0}
    assert verdicts(evidence(figures=inflated))["throughput-adds-up"] == "void"


@pytest.mark.parametrize(("failed", "verdict"), [(1, "flag"), (100, "void"), (1000, "void")])
def test_failed_requests_flag_or_void_by_their_share(failed: int, verdict: str) -> None:
    good = requests()[0]
    run = Run(CLIENT, (FAILED,) * failed + (good,) * (1000 - failed))
    found = {f.name: f for f in validators.check(evidence(run=run))}["none-failed"]
    assert found.verdict == verdict
    assert f"{failed} of 1000 requests failed" in found.message
    assert "Server disconnected" in found.message


def test_what_can_not_be_looked_at_is_unchecked_not_ok() -> None:
    silent = requests(finish_reason=None, cached_tokens=None)
    blind = evidence(
        silent,
        traffic=None,
        counters=None,
        gpu=None,
        client=Client("c", "1"),
        step_s=None,
        cpu_wait_share=None,
    )
    assert set(verdicts(blind).values()) == {"unchecked"}
    assert verdicts(blind).keys() == {
        "finish-reasons",
        "cache-cold",
        "counters-agree",
        "none-retracted",
        "graphs-used",
        "batch-reached",
        "log-agrees",
        "client-in-time",
        "client-not-the-limit",
        "clock-steady",
        "clocks-held",
        "gpus-alone",
        "cpu-at-hand",
    }


def test_graphs_are_not_missed_on_a_cpu() -> None:
    on_cpu = evidence(traffic=TRAFFIC | {"graph": "none"}, on_gpu=False)
    assert verdicts(on_cpu) == {"graphs-used": "unchecked"}


def test_where_usage_does_not_tell_what_was_cached_the_log_does_or_the_counters() -> None:
    untold = requests(cached_tokens=None)
    for cached, verdict in ((6, "flag"), (300, "void")):
        seen = evidence(untold, traffic=TRAFFIC | {"cached_tokens": cached})
        assert verdicts(seen) == {"cache-cold": verdict}
    counters = COUNTERS | {"prompt_tokens": 512.0, "cached_tokens": 256.0}
    silent = TRAFFIC | {"prompt_tokens": 0}
    assert verdicts(evidence(untold, traffic=silent, counters=counters)) == {"cache-cold": "void"}


CHAT = Prompts("chat", "0" * 64, ([{"role": "user", "content": "Why?"}],))


def test_texts_have_their_own_lengths_and_begin_alike() -> None:
    texts = replace(WORKLOAD, prompts=CHAT)
    seen = evidence(
        requests(input_tokens=31, cached_tokens=3),
        workload=texts,
        depends_on_text=["speculative decoding"],
    )
    assert verdicts(seen) == {"input-lengths": "unchecked", "cache-cold": "flag"}


def test_an_open_loop_that_falls_behind_its_schedule_is_flagged() -> None:
    opened = replace(WORKLOAD, rate=2.0)
    for late_s, verdict in ((0.001, "ok"), (0.4, "flag")):
        records = [replace(r, scheduled_s=r.sent_s - late_s) for r in requests()]
        found = {f.name: f for f in validators.check(evidence(records, workload=opened))}
        assert found["sent-when-due"].verdict == verdict
        assert found["throughput-adds-up"].verdict == found["batch-reached"].verdict == "unchecked"
    assert "more were due than 2 at once" in found["sent-when-due"].message


def test_a_loop_that_loses_time_between_requests_is_flagged() -> None:
    """Each request takes 0.69 s, and the next one starts a second after it."""
    slow = [
        replace(r, sent_s=1.69 * n, first_token_s=1.69 * n + 0.2, last_token_s=1.69 * n + 0.69)
        for n, r in ((place // 2, r) for place, r in enumerate(requests()))
    ]
    assert verdicts(evidence(slow))["throughput-adds-up"] == "flag"


def test_more_requests_than_the_server_admits_are_said_to_wait() -> None:
    full = evidence(traffic=TRAFFIC | {"running_max": 1, "queue_max": 1})
    found = {f.name: f for f in validators.check(full)}["batch-reached"]
    assert found.verdict == "flag"
    assert found.message == (
        "at most 1 requests ran at once, 2 were sent, up to 1 waited in the server's queue"
    )


def test_void_reasons_name_their_validator() -> None:
    reasons = validators.voids(validators.check(evidence(flushed=False)))
    assert reasons == ["cache-cold: the prefix cache was not flushed before the run"]


def test_a_sweep_that_falls_with_concurrency_is_flagged() -> None:
    assert validators.rises_with_concurrency({1: 28.0, 8: 120.0, 16: 20.0}).verdict == "flag"
    assert validators.rises_with_concurrency({1: 28.0, 16: 150.0}).verdict == "ok"
    assert validators.rises_with_concurrency({1: 28.0}).verdict == "unchecked"
