"""Reasons not to trust a measurement: each validator looks at one thing and says what it saw.

``void`` means that the figures are not what they claim to be; ``flag`` that they are, but with a
reservation.  A validator that lacks what it looks at says ``unchecked``: that is not ``ok``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bringup.load.records import Run
from bringup.load.workload import Workload

Level = Literal["ok", "flag", "void", "unchecked"]

FAILED_SHARE = 0.05
"""Failed requests beyond this share void a run (InferenceX's limit); fewer are flagged."""

CACHED_FLAG, CACHED_VOID = 0.01, 0.05
"""Share of prompt tokens from the prefix cache.  vLLM warns from 1 % (PR #53920); 25 to 86 % more
throughput was seen, differently at each concurrency (vLLM #52884, #54227)."""

COUNTER_SHARE = 0.01
"""Largest difference between the client's token count and the server's counter."""

SHORT_SHARE = 0.8
"""A run shorter than this share of ``min_seconds`` is flagged."""

LATE_SHARE = 0.1
"""The client's event loop may be late by this share of the median time to first token."""

TTFT_LATE_SHARE = 0.01
"""First tokens may be seen late by this share of the median time to first token."""

CPU_SHARE = 0.9
"""A single-threaded client that uses more of a core is the limit itself."""

SLOWED_SHARE = 0.05
"""A run is flagged where clocks were held down in more than this share of the samples."""

STARVED_SHARE = 0.1
"""A run is flagged where a thread of the server was ready and had no CPU for more of it than this:
other loads, or too few cores.  One real server on 2 cores: 3 to 5 %; two at once: 14 to 22 %."""

CLOCK_FLAG_S, CLOCK_VOID_SHARE = 0.1, 0.05
"""How far the clock on the wall may move against the monotonic one: in seconds, and as a share of
the run.  Adjustments are far smaller; a clock that was set, or a machine suspended, is not."""

SENT_LATE_SHARE = 0.01
"""Share of the mean gap between requests by which an open loop may send them late (median)."""

REACHED_SHARE = 0.9
"""A closed loop whose steady throughput is below this share of what its requests' own speed gives
lost time between them."""

LOG_SHARE = 0.3
"""Largest difference between decode throughput in the server's log and in the client's steady
window, where the log's includes no prefill."""


@dataclass(frozen=True)
class Finding:
    """What one validator says of one run."""

    name: str
    verdict: Level
    message: str


@dataclass(frozen=True)
class Evidence:
    """All that is known of one run.

    ``figures`` are those of `bringup.load.definitions`; ``traffic`` is what the server's log shows
    of the same window (`bringup.evidence.log.traffic`); ``counters`` how far the server's own
    counters moved (name → difference); ``gpu`` what the GPUs did
    (`bringup.load.telemetry.figures`); ``cpu_wait_share`` the share of the run for which one thread
    of the server waited for a CPU (`bringup.load.cpu`); each None where there is none.  ``on_gpu``
    says that the server has GPUs, watched or not, ``depends_on_text`` what of it random tokens
    don't use as texts do.
    """

    workload: Workload
    run: Run
    figures: Mapping[str, Any]
    asked: int
    flushed: bool
    traffic: Mapping[str, Any] | None = None
    counters: Mapping[str, float] | None = None
    gpu: Mapping[str, Any] | None = None
    on_gpu: bool = False
    cpu_wait_share: float | None = None
    depends_on_text: Sequence[str] = ()


Check = Callable[[Evidence], tuple[Level, str]]


def check(evidence: Evidence) -> list[Finding]:
    """Return the finding of every validator for one run, in a fixed order."""
    return [Finding(name, *look(evidence)) for name, look in VALIDATORS.items()]


def voids(findings: Iterable[Finding]) -> list[str]:
    """Return the reasons for which a run is void."""
    return [f"{each.name}: {each.message}" for each in findings if each.verdict == "void"]


def documents(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Return findings as points store them."""
    return [asdict(each) for each in findings]


def rises_with_concurrency(throughputs: Mapping[int, float]) -> Finding:
    """Look at a whole sweep: more requests at once must not give less throughput than one alone.

    Args:
        throughputs: concurrency → output tokens per second of the points that count.
    """
    name = "rises-with-concurrency"
    if len(throughputs) < 2:
        return Finding(name, "unchecked", "needs points at two levels")
    lowest, highest = min(throughputs), max(throughputs)
    if throughputs[highest] < throughputs[lowest]:
        return Finding(
            name,
            "flag",
            f"{throughputs[highest]:.1f} tok/s at C = {highest} is less than "
            f"{throughputs[lowest]:.1f} at C = {lowest}",
        )
    return Finding(name, "ok", f"more at C = {highest} than at C = {lowest}")


def _all_sent(evidence: Evidence) -> tuple[Level, str]:
    sent = len(evidence.run.records)
    if sent != evidence.asked:
        return "void", f"{evidence.asked} requests were asked for, {sent} are recorded"
    return "ok", f"{sent} requests"


def failures(run: Run) -> tuple[int, str]:
    """Return how many requests of a run failed, and that in words with the commonest reason."""
    errors = Counter(each.error for each in run.records if each.error)
    if not errors:
        return 0, "no request failed"
    text, times = errors.most_common(1)[0]
    failed = errors.total()
    return failed, f"{failed} of {len(run.records)} requests failed; {times} x {text}"


def _none_failed(evidence: Evidence) -> tuple[Level, str]:
    failed, message = failures(evidence.run)
    if not failed:
        return "ok", message
    share = failed / len(evidence.run.records)
    return ("void" if share > FAILED_SHARE else "flag"), message


def _output_lengths(evidence: Evidence) -> tuple[Level, str]:
    return _lengths(
        [each.output_tokens for each in evidence.run.records if each.error is None],
        evidence.workload.output_tokens,
        "output",
    )


def _input_lengths(evidence: Evidence) -> tuple[Level, str]:
    if evidence.workload.prompts:
        return "unchecked", "texts have the lengths that they have"
    return _lengths(
        [each.input_tokens for each in evidence.run.records if each.error is None],
        evidence.workload.input_tokens,
        "prompt",
    )


def _lengths(lengths: Sequence[int], asked: int, what: str) -> tuple[Level, str]:
    other = [length for length in lengths if length != asked]
    if not lengths:
        return "unchecked", "no request ended well"
    if other:
        span = f"{min(other)} to {max(other)}"
        return "void", f"{len(other)} of {len(lengths)} have {span} {what} tokens, not {asked}"
    return "ok", f"all have {asked} {what} tokens"


def _finish_reasons(evidence: Evidence) -> tuple[Level, str]:
    """Look whether answers ended for their length, as was asked for, and for nothing else."""
    done = [each.finish_reason for each in evidence.run.records if each.error is None]
    known = Counter(reason for reason in done if reason)
    if not known:
        return "unchecked", "the client does not say why answers ended"
    if other := {reason: times for reason, times in known.items() if reason != "length"}:
        found = ", ".join(f"{times} x {reason}" for reason, times in other.items())
        return "void", f"answers ended for other reasons than their length: {found}"
    return "ok", "every answer ended for its length"


def _first_tokens(evidence: Evidence) -> tuple[Level, str]:
    instant = [e for e in evidence.run.records if e.error is None and not (e.ttft_s or 0) > 0]
    if instant:
        return "void", f"{len(instant)} requests have no time to first token"
    return "ok", "every time to first token is above 0"


def _throughput_adds_up(evidence: Evidence) -> tuple[Level, str]:
    """Compare throughput with what ``concurrency`` requests of the measured speed can give."""
    speed, e2e = evidence.figures["output_tok_s"], evidence.figures["e2e_ms"]["mean"]
    if not speed or not e2e:
        return "unchecked", "no throughput"
    if evidence.workload.rate:
        return "unchecked", "an open loop sends what it sends"
    tokens = evidence.figures["output_tokens"] / evidence.figures["completed"]
    possible = evidence.workload.concurrency * tokens / (e2e / 1000)
    if speed > 1.05 * possible:
        return "void", f"{speed:.1f} tok/s, but its requests can give {possible:.1f} at most"
    steady = evidence.figures["steady_tok_s"]
    if steady and steady < REACHED_SHARE * possible:
        return "flag", f"{steady:.1f} tok/s, where its requests' own speed gives {possible:.1f}"
    return "ok", f"{speed:.1f} of at most {possible:.1f} tok/s"


def _sent_when_due(evidence: Evidence) -> tuple[Level, str]:
    """Look whether an open loop sent its requests at the times that it had drawn."""
    rate = evidence.workload.rate
    late = sorted(
        each.sent_s - each.scheduled_s
        for each in evidence.run.records
        if each.scheduled_s is not None
    )
    if not rate or not late:
        return "unchecked", "a closed loop has no times to send at"
    middle = late[len(late) // 2]
    message = f"requests were sent {1000 * middle:.1f} ms late (median), {late[-1]:.2f} s at most"
    if middle > SENT_LATE_SHARE / rate:
        return "flag", f"{message}: more were due than {evidence.workload.concurrency} at once"
    return "ok", message


def _prompts_like_use(evidence: Evidence) -> tuple[Level, str]:
    if evidence.workload.prompts or not evidence.depends_on_text:
        return "ok", "nothing here is known to depend on what is said"
    what = " and ".join(evidence.depends_on_text)
    return "flag", f"random tokens: {what} may do otherwise with texts (sweep.prompts)"


def _clock_steady(evidence: Evidence) -> tuple[Level, str]:
    step, duration = evidence.run.clock_step_s, evidence.figures["duration_s"]
    if step is None or not duration:
        return "unchecked", "the client did not compare clocks"
    message = f"the clock on the wall moved {step:+.3f} s against the one that was measured with"
    if abs(step) <= CLOCK_FLAG_S:
        return "ok", message
    return ("void" if abs(step) > CLOCK_VOID_SHARE * duration else "flag"), message


def _long_enough(evidence: Evidence) -> tuple[Level, str]:
    duration, asked = evidence.figures["duration_s"], evidence.workload.min_seconds
    if duration is None:
        return "unchecked", "no duration"
    message = f"{duration:.1f} s, asked for {asked:g}"
    return ("flag" if duration < SHORT_SHARE * asked else "ok"), message


def _cache_cold(evidence: Evidence) -> tuple[Level, str]:
    if not evidence.flushed:
        return "void", "the prefix cache was not flushed before the run"
    cached, computed = _prefill(evidence)
    if cached + computed == 0:
        return "unchecked", "neither the server's log nor its counters show a prefill"
    share = cached / (cached + computed)
    message = f"{share:.1%} of the prompt tokens came from the prefix cache"
    if evidence.workload.prompts:  # texts begin alike, with their chat template at least
        return ("flag" if share > CACHED_VOID else "ok"), message
    level: Level = "void" if share > CACHED_VOID else "flag" if share > CACHED_FLAG else "ok"
    return level, message


def _prefill(evidence: Evidence) -> tuple[float, float]:
    """Return prompt tokens taken from the prefix cache and computed.

    By the answers' usage, or else the server's log, or else its counters.
    """
    told = [each for each in evidence.run.records if each.cached_tokens is not None]
    if told:
        known = float(sum(each.cached_tokens or 0 for each in told))
        return known, sum(each.input_tokens for each in told) - known
    if evidence.traffic and evidence.traffic["prompt_tokens"]:
        return evidence.traffic["cached_tokens"], evidence.traffic["prompt_tokens"]
    counters = evidence.counters or {}
    cached = counters.get("cached_tokens", 0.0)
    return cached, counters.get("prompt_tokens", 0.0) - cached


def _counters_agree(evidence: Evidence) -> tuple[Level, str]:
    """Hold the answers' usage against the server's counter.

    Counting an answer's tokens again from its text is no check: random tokens give texts that
    other tokens spell, too.
    """
    if not evidence.counters or "generation_tokens" not in evidence.counters:
        return "unchecked", "the server shows no counters (--enable-metrics)"
    server = evidence.counters["generation_tokens"]
    client = sum(each.output_tokens for each in evidence.run.records)
    message = f"{server:.0f} output tokens by the server's counter, {client} by the client"
    differs = abs(server - client) > COUNTER_SHARE * max(server, client)
    return ("void" if differs else "ok"), message


def _none_retracted(evidence: Evidence) -> tuple[Level, str]:
    """Look whether the server threw requests out of its batch for want of KV cache."""
    if not evidence.counters:
        return "unchecked", "the server shows no counters (--enable-metrics)"
    retracted = evidence.counters.get("retracted", 0.0)  # it appears with the first one
    if retracted:
        return "flag", f"{retracted:.0f} requests lost their place for want of KV cache"
    return "ok", "no request lost its place in the batch"


def _graphs_used(evidence: Evidence) -> tuple[Level, str]:
    used = (evidence.traffic or {}).get("graph", "unknown")
    if used == "unknown":
        return "unchecked", "the server's log says nothing of graphs"
    if not evidence.on_gpu:
        return "unchecked", "a server on a CPU uses no graphs unless asked to"
    levels: dict[str, tuple[Level, str]] = {
        "all": ("ok", "every decode step logged ran in a graph"),
        "some": ("flag", "some decode steps ran outside a graph"),
        "none": ("flag", "no decode step ran in a graph"),
    }
    return levels[used]


def _batch_reached(evidence: Evidence) -> tuple[Level, str]:
    """Look whether the server ran as many requests at once as were sent."""
    most = (evidence.traffic or {}).get("running_max")
    if most is None:
        return "unchecked", "the server's log shows no decode step in this window"
    if evidence.workload.rate:
        return "unchecked", f"an open loop; {most} requests ran at once"
    asked, waiting = evidence.workload.concurrency, (evidence.traffic or {}).get("queue_max")
    if most < asked:
        queued = f", up to {waiting} waited in the server's queue" if waiting else ""
        return "flag", f"at most {most} requests ran at once, {asked} were sent{queued}"
    return "ok", f"{most} requests ran at once"


def _log_agrees(evidence: Evidence) -> tuple[Level, str]:
    server = (evidence.traffic or {}).get("decode_tok_s")
    client = evidence.figures["steady_tok_s"] or evidence.figures["output_tok_s"]
    if not server or not client:
        return "unchecked", "the server's log shows too few decode steps"
    message = f"{server:.1f} tok/s by the server's log, {client:.1f} by the client"
    return ("flag" if client > (1 + LOG_SHARE) * server else "ok"), message


def _client_in_time(evidence: Evidence) -> tuple[Level, str]:
    client, ttft = evidence.run.client, evidence.figures["ttft_ms"]["p50"]
    late, first = client.loop_late_ms_p99, client.ttft_late_ms
    if late is None or first is None or not ttft:
        return "unchecked", "the client does not say how late it was"
    message = f"the client was {late:.1f} ms late (p99), for first tokens {first:.2f} ms (median)"
    limit = late > LATE_SHARE * ttft or first > TTFT_LATE_SHARE * ttft
    return ("flag" if limit else "ok"), message


def _client_not_the_limit(evidence: Evidence) -> tuple[Level, str]:
    share = evidence.run.client.cpu_share
    if share is None:
        return "unchecked", "the client does not say how busy it was"
    message = f"the client used {share:.0%} of a core"
    return ("flag" if share > CPU_SHARE else "ok"), message


def _clocks_held(evidence: Evidence) -> tuple[Level, str]:
    if evidence.gpu is None:
        return "unchecked", "no GPU was watched"
    slowed = {why: share for why, share in evidence.gpu["slowed"].items() if share > SLOWED_SHARE}
    if slowed:
        reasons = ", ".join(f"{why} in {share:.0%}" for why, share in slowed.items())
        return "flag", f"clocks were held down: {reasons} of the samples"
    return "ok", "clocks were not held down"


def _gpus_alone(evidence: Evidence) -> tuple[Level, str]:
    if evidence.gpu is None:
        return "unchecked", "no GPU was watched"
    if evidence.gpu["newcomers"]:
        return "void", f"{evidence.gpu['newcomers']} other processes came to the GPUs meanwhile"
    return "ok", "no other process came to the GPUs"


def _cpu_at_hand(evidence: Evidence) -> tuple[Level, str]:
    share = evidence.cpu_wait_share
    if share is None:
        return "unchecked", "how long the server's threads waited for a CPU is not known"
    said = f"a thread of the server waited for a CPU for {share:.0%} of the run"
    return ("flag" if share > STARVED_SHARE else "ok"), said


VALIDATORS: Mapping[str, Check] = {
    "all-sent": _all_sent,
    "none-failed": _none_failed,
    "output-lengths": _output_lengths,
    "input-lengths": _input_lengths,
    "finish-reasons": _finish_reasons,
    "first-tokens": _first_tokens,
    "sent-when-due": _sent_when_due,
    "prompts-like-use": _prompts_like_use,
    "throughput-adds-up": _throughput_adds_up,
    "long-enough": _long_enough,
    "cache-cold": _cache_cold,
    "counters-agree": _counters_agree,
    "none-retracted": _none_retracted,
    "graphs-used": _graphs_used,
    "batch-reached": _batch_reached,
    "log-agrees": _log_agrees,
    "client-in-time": _client_in_time,
    "client-not-the-limit": _client_not_the_limit,
    "clock-steady": _clock_steady,
    "clocks-held": _clocks_held,
    "gpus-alone": _gpus_alone,
    "cpu-at-hand": _cpu_at_hand,
}
"""Name → validator, in the order in which findings are shown."""
