"""Measure one experiment at one concurrency level: a point, with its own gate."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bringup import artifact, probes, validators
from bringup.endpoint import Endpoint, NoReplyError
from bringup.evidence.log import traffic
from bringup.load import cpu, definitions, records, summary, telemetry
from bringup.load.clients import Client
from bringup.load.workload import Job, Workload

SCHEMA = "point/1"

SHORT_PROBE = 12
"""Questions asked before, during and after the load."""

FLUSH_TRIES, FLUSH_PAUSE_S = 20, 0.25
"""SGLang refuses to flush while a request runs (HTTP 400); ours have just ended."""

CONTROL_TIMEOUT_S = 30.0

IDLE_S = 3.0
"""How long the GPUs are watched before the load, for what they draw without it."""

COUNTERS = {
    "generation_tokens": "sglang:generation_tokens_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "cached_tokens": "sglang:cached_tokens_total",
    "retracted": "sglang:num_retracted_requests_total",
    "verify_calls": "sglang:spec_verify_calls_total",
}
"""Our name → the server's counter in /metrics (SGLang 0.5.13 to 0.5.23)."""


@dataclass(frozen=True)
class Target:
    """The server that is measured.

    ``model`` is the snapshot's folder (for its tokenizer), ``log`` the file the server writes to,
    ``gpus`` the UUIDs of its devices, which are watched, ``number`` which of the experiment's
    boots it is, ``pid`` its process, whose waits for a CPU are looked at.  ``depends_on_text`` says
    in words what of it random tokens don't use as texts do.
    """

    boot: str
    url: str
    model: str
    log: Path
    api_key: str | None = None
    gpus: Sequence[str] = ()
    number: int = 1
    pid: int | None = None
    depends_on_text: Sequence[str] = ()

    @property
    def endpoint(self) -> Endpoint:
        """The server's address for control calls."""
        return Endpoint(self.url, self.api_key)


@dataclass(frozen=True)
class Gate:
    """The short probe of a point: questions, thresholds, and whether to measure wrong answers."""

    questions: Sequence[probes.Question]
    thresholds: probes.Thresholds = field(default_factory=probes.Thresholds)
    timeout_s: float = 120
    measure_wrong: bool = False
    template: Mapping[str, Any] = field(default_factory=lambda: probes.NO_THINKING)


class ServerGoneError(Exception):
    """The server stopped answering in the middle; what was measured before is kept."""


class NothingCompletedError(Exception):
    """Of a whole run no request ended well, and of the next none would, which may take hours.

    Its arguments are the class of the reason and the message.
    """


def measure(
    experiment: str,
    target: Target,
    workload: Workload,
    gate: Gate,
    *,
    repeats: int,
    client: Client,
    folder: Path,
) -> artifact.Document:
    """Measure a point on one boot and return its document, ``points/c<concurrency>.json``.

    In order: the questions alone; a warm-up of other prompts, from which the number of requests
    follows; the repeats, each after a flush of the prefix cache and with a seed of its own; the
    questions inside a full batch; the questions alone again.  Nothing but the load reaches the
    server during a repeat.

    A server that answers wrongly is measured only if ``gate.measure_wrong``.  A server that dies
    is a result, and so is a run (the warm-up counts as one) of which no request ends well: status
    ``failed``, with the repeats until then.

    Args:
        experiment: its name.
        target: the server.
        workload: what is sent.
        gate: what is asked.
        repeats: how many runs.
        client: sends the load.
        folder: where the client's files go, one set for each run.

    Raises:
        OSError: the load client could not be run, which says nothing about the server.
        ValueError: it wrote something else than records.
    """
    point = _Point(experiment, target, workload, gate, client, folder)
    try:
        point.ask("before")
        if point.verdict().gate != "pass" and not gate.measure_wrong:
            return point.document()
        point.look_at_idle()
        rate = point.warm_up()
        for number in range(1, repeats + 1):
            rate = point.repeat(number, rate)
        point.ask("during", within_batch=True)
        point.ask("after")
    except ServerGoneError as error:
        return point.document(artifact.reason("server-gone", str(error), hint="See server.log."))
    except NothingCompletedError as error:
        return point.document(artifact.reason(*error.args, hint="See server.log."))
    return point.document()


class _Point:
    """A point while it is being measured."""

    def __init__(
        self,
        experiment: str,
        target: Target,
        workload: Workload,
        gate: Gate,
        client: Client,
        folder: Path,
    ) -> None:
        self._experiment, self._target, self._workload = experiment, target, workload
        self._gate, self._send = gate, client
        self._folder = folder.absolute()  # the client's process has another working directory
        self._questions = probes.short(gate.questions, SHORT_PROBE)
        self._phases: dict[str, list[probes.Item]] = {}
        self._repeats: list[dict[str, Any]] = []
        self._client: records.Client | None = None
        self._idle_power_w: float | None = None
        aside = ThreadPoolExecutor(1)  # NVML takes a moment to open: while the first are asked
        self._nvml = aside.submit(telemetry.nvml_reader) if target.gpus else None
        aside.shutdown(wait=False)

    def ask(self, phase: str, *, within_batch: bool = False) -> None:
        """Ask the short probe, alone or inside a full batch."""
        ask = probes.ask_within_batch if within_batch else probes.ask
        self._phases[phase] = ask(
            self._target.url,
            self._questions,
            concurrency=self._workload.concurrency if within_batch else 1,
            timeout_s=self._gate.timeout_s,
            template=self._gate.template,
            api_key=self._target.api_key,
        )

    def verdict(self) -> probes.Verdict:
        """Return the gate over the phases so far."""
        return probes.across(self._phases, self._gate.thresholds)

    def look_at_idle(self) -> None:
        """Watch the GPUs while the server has nothing to do."""
        with self._watching() as watch:
            if watch:
                time.sleep(IDLE_S)
        self._idle_power_w = telemetry.mean_power_w(watch) if watch else None

    def warm_up(self) -> float | None:
        """Send the warm-up; return the requests per second that it reached."""
        run = self._run("warm-up", self._workload.warm_up_requests())
        figures = definitions.figures(run.records, self._workload.concurrency)
        self._must_complete("warm-up", run, figures)
        return _rate(figures)

    def repeat(self, number: int, rate: float | None) -> float | None:
        """Measure one repeat and keep it; return the requests per second that it reached."""
        flushed = self._flush()
        counters, start = self._counters(), _size(self._target.log)
        asked = self._workload.requests(rate)
        waits, began = self._waits(), time.monotonic()
        with self._watching() as watch:
            run = self._run(number, asked)
        waited = cpu.longest(waits, self._waits())
        lasted = time.monotonic() - began
        end, after = _size(self._target.log), self._counters()
        figures = definitions.figures(run.records, self._workload.concurrency)
        seen = traffic(self._target.log, start, end) if end > start else None
        gpu = None
        if watch:
            gpu = telemetry.figures(watch, run.start_s, run.end_s, figures["output_tokens"])
            gpu["idle_power_w"] = self._idle_power_w
        moved = _moved(counters, after)
        findings = validators.check(
            validators.Evidence(
                workload=self._workload,
                run=run,
                figures=figures,
                asked=asked,
                flushed=flushed,
                traffic=seen,
                counters=moved,
                gpu=gpu,
                on_gpu=bool(self._target.gpus),
                cpu_wait_share=None if waited is None else waited / lasted,
                depends_on_text=self._target.depends_on_text,
            )
        )
        self._repeats.append(
            {
                "boot": self._target.boot,
                "seed": self._workload.seed(number, self._target.number),
                **_rounded(figures),
                "server": seen,
                "counters": _rounded(moved) or None,
                "client": _rounded(asdict(run.client)),
                "gpu": _rounded(gpu),
                "validators": validators.documents(findings),
                "void": validators.voids(findings),
            }
        )
        self._must_complete(f"repeat {number}", run, figures)
        return _rate(figures) or rate

    def document(self, failure: artifact.Document | None = None) -> artifact.Document:
        """Return the point with what was measured so far; ``failure`` is why it ended early."""
        void = [
            f"repeat {number}: {why}"
            for number, repeat in enumerate(self._repeats, 1)
            for why in repeat["void"]
        ]
        verdict = self.verdict()
        status, why = self._status(failure, verdict)
        client = self._client
        return artifact.document(
            SCHEMA,
            status,
            why,
            experiment=self._experiment,
            concurrency=self._workload.concurrency,
            boot=self._target.boot,
            workload=self._workload.document(),
            gate={"verdict": verdict.gate, **self._summaries()},
            repeats=self._repeats,
            summary=summary.of(self._repeats),
            server=summary.served(self._repeats),
            void=void,
            client=client and {"name": client.name, "version": client.version},
        )

    def _status(
        self, failure: artifact.Document | None, verdict: probes.Verdict
    ) -> tuple[artifact.Status, artifact.Document | None]:
        if failure is not None:
            return "failed", failure
        if verdict.gate == "pass":
            return "ok", None
        return "failed" if verdict.gate == "error" else "wrong", probes.reason(verdict)

    def _summaries(self) -> dict[str, Any]:
        return {
            phase: probes.summary(probes.gate(items, self._gate.thresholds))
            for phase, items in self._phases.items()
        }

    def _run(self, name: int | str, count: int) -> records.Run:
        boot = f".boot{self._target.number}" if self._target.number > 1 else ""
        stem = f"c{self._workload.concurrency}{boot}.{name}"
        output = self._folder / f"{stem}.records.json"
        self._folder.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)
        target = self._target
        seed = self._workload.seed(name, target.number)
        job = Job(self._workload, target.url, target.model, count, seed, target.api_key)
        try:
            self._send(job, output)
        except OSError:
            self._must_live()
            raise
        run = records.read(output)
        self._client = run.client
        return run

    def _watching(self) -> AbstractContextManager[telemetry.Watch | None]:
        reader = self._nvml.result() if self._nvml else None
        return telemetry.watching(self._target.gpus, reader) if reader else nullcontext()

    def _waits(self) -> cpu.Waits:
        return cpu.waits(self._target.pid) if self._target.pid else {}

    def _flush(self) -> bool:
        """Empty the prefix cache; return whether the server says that it did."""
        for _ in range(FLUSH_TRIES):
            if self._control("POST", "/flush_cache") is not None:
                return True
            time.sleep(FLUSH_PAUSE_S)
        return False

    def _counters(self) -> dict[str, float]:
        text = self._control("GET", "/metrics") or ""
        return {name: total for name, key in COUNTERS.items() if (total := _counter(text, key))}

    def _must_complete(self, name: str, run: records.Run, figures: Mapping[str, Any]) -> None:
        """Stop where no request of a run ended well."""
        if figures["completed"]:
            return
        self._must_live()
        if not run.records:
            raise NothingCompletedError("no-request-sent", f"{name}: the client sent no request")
        why = validators.failures(run)[1]
        raise NothingCompletedError("all-requests-failed", f"{name}: {why}")

    def _must_live(self) -> None:
        self._control("GET", "/model_info")

    def _control(self, method: str, path: str) -> str | None:
        """Return the body of a control call's answer, None where it was refused."""
        endpoint = self._target.endpoint
        try:
            if method == "POST":
                reply = endpoint.post(path, timeout_s=CONTROL_TIMEOUT_S)
            else:
                reply = endpoint.get(path, timeout_s=CONTROL_TIMEOUT_S)
        except NoReplyError as error:
            raise ServerGoneError(f"the server stopped answering: {error}") from None
        return reply.text if reply.status == 200 else None


def _rate(figures: Mapping[str, Any]) -> float | None:
    return figures["completed"] / figures["duration_s"] if figures["duration_s"] else None


def _counter(text: str, name: str) -> float | None:
    """Return the sum of a counter over its labels in the text of /metrics, None without it."""
    values = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, values)) if values else None


def _moved(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: total - before.get(name, 0.0) for name, total in after.items()}


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _rounded(value: Any) -> Any:
    """Return figures with at most four decimals: more is noise."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
