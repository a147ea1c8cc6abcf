"""Measure the load clients against a server whose speed is known.

    python benchmarks/client_truth/run.py --engine ENGINE/bin/python

Writes docs/client-truth.json and docs/client-truth.md.  The truth is what the server did, by its
own records, in the same definitions; its lateness stands beside it, so that a server that was the
limit is seen.  It takes a quarter of an hour; with ``--clients``, ``--faults``, ``--curve`` and
``--add`` a machine that others use, too, is measured in parts, each client and level in one.
On a CPU host SGLang wants ``PYTHONPATH=envs/cpu`` and ``SGLANG_USE_CPU_ENGINE=1``.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import others
from server import SCENARIOS

from bringup import validators
from bringup.endpoint import Endpoint, NoReplyError
from bringup.load import clients, definitions, prompts, records
from bringup.load.workload import Job, Workload

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
TOKENIZER = PROJECT / "resources" / "arithmetic-moe" / "bf16"
DOCUMENT = PROJECT / "docs" / "client-truth.json"

FAULTS = [name for name in SCENARIOS if name != "load"]
FAULT_LOAD = Workload(concurrency=4, input_tokens=16, output_tokens=50, min_seconds=0)
FAULT_REQUESTS = 16
CURVE_TOKENS = 100
CURVE_ROUNDS = 2
TOLERANCE = 0.01

FIGURES = ("ttft_ms", "tpot_ms", "output_tok_s")
OWN_NAMES = {
    "ttft_ms": "median_ttft_ms",
    "tpot_ms": "median_tpot_ms",
    "output_tok_s": "output_throughput",
}
"""Our figure → its name in the client's own result line."""

DIRECT = "direct"
TEXTS = "direct, texts"
SGLANG = "sglang"
NATIVE = "sglang, its own figures"
CHAT = "sglang-oai-chat, its own figures"
RUST = "sglang's Rust client, its own figures"

ADAPTERS = (DIRECT, SGLANG)
"""Clients that a sweep can use; their figures are computed by us, from records of each request."""

Figures = dict[str, Any]


class Bench:
    """The server, and the process that runs SGLang's clients (None: they are left out)."""

    def __init__(
        self,
        url: str,
        folder: Path,
        engine: str | None,
        run_python: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._url, self._folder, self._engine, self._run_python = url, folder, engine, run_python
        self._runs = 0

    def clients(
        self, scenario: str, load: Workload, requests: int, wanted: Sequence[str]
    ) -> dict[str, Figures]:
        """Run each client on a server's scenario; return name → figures, truth and errors."""
        found: dict[str, Figures] = {}
        if DIRECT in wanted:
            found[DIRECT] = self._adapter(clients.direct, scenario, load, requests)[0]
            if scenario != "load":
                texts = replace(load, prompts=prompts.load("chat"))
                found[TEXTS] = self._adapter(clients.direct, scenario, texts, requests)[0]
        if SGLANG in wanted:
            mine, output = self._adapter(clients.sglang(self._bench), scenario, load, requests)
            own = _own(output.with_suffix(".bench_serving.jsonl"))
            found |= {SGLANG: mine, NATIVE: _errors(own, mine["truth"])}
            found[RUST] = self._rust(scenario, load, requests)
            if scenario != "load":
                found[CHAT] = self._chat(scenario, load, requests)
        for name in [each for each in others.names() if each in wanted]:
            job, run = self._job(scenario, load, requests)
            own = others.run(name, job, self._folder / f"{run}.{name}")
            found[name] = _errors(own, self._truth(run, load, own["completed"]))
        return found

    def _adapter(
        self, client: clients.Client, scenario: str, load: Workload, requests: int
    ) -> tuple[Figures, Path]:
        job, run = self._job(scenario, load, requests)
        output = self._folder / f"{run}.records.json"
        client(job, output)
        seen = records.read(output)
        figures = definitions.figures(seen.records, load.concurrency)
        evidence = validators.Evidence(load, seen, figures, requests, flushed=True)
        findings = validators.check(evidence)
        ours = {name: _middle(figures[name]) for name in FIGURES} | {
            "completed": figures["completed"],
            "noticed": [
                f"{f.verdict}: {f.name}" for f in findings if f.verdict in ("flag", "void")
            ],
            "loop_late_ms_p99": seen.client.loop_late_ms_p99,
            "ttft_late_ms": seen.client.ttft_late_ms,
            "cpu_share": seen.client.cpu_share,
        }
        return _errors(ours, self._truth(run, load, figures["completed"])), output

    def _bench(self, argv: list[str], output: Path) -> None:
        self._run_python({"argv": argv, "output": str(output)})

    def _chat(self, scenario: str, load: Workload, requests: int) -> Figures:
        """Run SGLang's client over the chat endpoint."""
        job, run = self._job(scenario, load, requests)
        summary = self._folder / f"{run}.jsonl"
        argv = clients.arguments(job, str(summary))
        argv[argv.index("--backend") + 1] = "sglang-oai-chat"
        for name, values in (("--extra-request-body", 1), ("--tokenize-prompt", 0)):
            place = argv.index(name)
            del argv[place : place + values + 1]
        self._bench(argv, self._folder / f"{run}.records.json")
        own = _own(summary)
        return _errors(own, self._truth(run, load, own["completed"]))

    def _rust(self, scenario: str, load: Workload, requests: int) -> Figures:
        """Run the compiled client of the same build."""
        job, run = self._job(scenario, load, requests)
        summary = self._folder / f"{run}.jsonl"
        argv = clients.arguments(job, str(summary))
        place = argv.index("--request-timeout-s")
        del argv[place : place + 2]
        command = [str(self._engine), "-m", "sglang.benchmark.rust_client", *argv]
        subprocess.run(command, capture_output=True, text=True, env=_engine_env())
        own = _own(summary)
        return _errors(own, self._truth(run, load, own["completed"]))

    def _job(self, scenario: str, load: Workload, requests: int) -> tuple[Job, str]:
        self._runs += 1
        run = f"run{self._runs}"
        url = f"{self._url}/{scenario}/{run}"
        return Job(load, url, str(TOKENIZER), requests, load.seed(self._runs)), run

    def _truth(self, run: str, load: Workload, completed: int) -> Figures:
        """Return what the server did in a run, in our definitions."""
        seen, late = served(self._folder, run, completed)
        figures = definitions.figures(seen, load.concurrency) if seen else {}
        return {name: _middle(figures.get(name)) for name in FIGURES} | {
            "late_ms": late and round(1000 * late, 2)
        }


def served(folder: Path, run: str, requests: int) -> tuple[list[records.Record], float | None]:
    """Return the server's own records of a run, and how late it was at worst (seconds).

    It writes them ten times a second, so ``requests`` of them are waited for.
    """
    lines: list[dict[str, Any]] = []
    deadline = time.monotonic() + 5
    while len(lines) < requests and time.monotonic() < deadline:
        files = list(folder.glob(f"{run}.[0-9]*.jsonl"))  # one for each process of the server
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    late_s = max((line.pop("late_s") for line in lines), default=None)
    return [records.Record(**line, longest_gap_s=None, error=None) for line in lines], late_s


def measure_faults(
    bench: Bench, names: Sequence[str], wanted: Sequence[str]
) -> dict[str, dict[str, Figures]]:
    """Return scenario → client → figures."""
    table = {}
    for name in names:
        print(name, flush=True)
        table[name] = bench.clients(name, FAULT_LOAD, FAULT_REQUESTS, wanted)
    return table


def measure_curve(
    bench: Bench, levels: Sequence[int], wanted: Sequence[str]
) -> dict[str, dict[str, Figures]]:
    """Return concurrency → client → figures."""
    table = {}
    for level in levels:
        print(f"C = {level}", flush=True)
        load = Workload(level, input_tokens=16, output_tokens=CURVE_TOKENS, min_seconds=0)
        table[str(level)] = bench.clients("load", load, max(4, CURVE_ROUNDS * level), wanted)
    return table


def within(curve: Mapping[str, Mapping[str, Figures]], client: str) -> int | None:
    """Return the highest level up to which every figure of a client is within the tolerance."""
    reached = None
    for level in sorted(curve, key=int):
        errors = curve[level].get(client, {}).get("errors", {"": None}).values()
        if not _is_within(errors):
            break
        reached = int(level)
    return reached


def _is_within(errors: Iterable[float | None]) -> bool:
    return all(error is not None and abs(error) <= TOLERANCE for error in errors)


def unnoticed(curve: Mapping[str, Mapping[str, Figures]]) -> list[str]:
    """Name the runs of our adapters that were off by more and that no validator noticed."""
    return [
        f"{client} at C = {level}"
        for level, found in curve.items()
        for client in ADAPTERS
        if client in found
        and not found[client]["noticed"]
        and not _is_within(found[client]["errors"].values())
    ]


def document(
    faults: Mapping[str, Mapping[str, Figures]],
    curve: Mapping[str, Mapping[str, Figures]],
    measured: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return docs/client-truth.json; ``measured`` says which part of it when (`part`)."""
    named = dict.fromkeys(client for level in curve.values() for client in level)
    reached = {client: within(curve, client) for client in named}
    return {
        "cores": os.cpu_count(),
        "measured": measured,
        "default_client": max(ADAPTERS, key=lambda client: reached.get(client) or 0),
        "max_concurrency_within_1pct": reached,
        "unnoticed": unnoticed(curve),
        "scenarios": {name: SCENARIOS[name].what for name in SCENARIOS},
        "faults": faults,
        "curve": curve,
    }


def part(wanted: Sequence[str]) -> dict[str, Any]:
    """Return what is said of clients that are measured together from now on."""
    return {
        "date": datetime.date.today().isoformat(),
        "revision": _revision(),
        "load_average_before": round(os.getloadavg()[0], 1),
        "clients": list(wanted),
        "faults": [],
        "curve": [],
    }


def _own(summary: Path) -> Figures:
    """Return the figures of the client's own result line; none where it wrote none."""
    if not summary.exists():
        return {**dict.fromkeys(FIGURES), "completed": 0}
    line = json.loads(summary.read_text().splitlines()[-1])
    return {name: line.get(own) for name, own in OWN_NAMES.items()} | {
        "completed": line.get("completed", 0)
    }


def _errors(figures: Figures, truth: Figures) -> Figures:
    """Return figures with the truth and the relative errors beside them."""
    errors = {
        name: round(figures[name] / truth[name] - 1, 4)
        if truth[name] and figures[name] is not None
        else None
        for name in FIGURES
    }
    shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
    return {**shown, "truth": truth, "errors": errors}


def _middle(figure: Any) -> float | None:
    value = figure["p50"] if isinstance(figure, dict) else figure
    return None if value is None else round(value, 3)


def _revision() -> str:
    asked = ["git", "-C", str(PROJECT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _engine_env() -> dict[str, str]:
    """Return this environment with byte code written: imports take 3 x as long without."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def running_server(folder: Path, processes: int) -> Iterator[str]:
    """Run the server of known speed; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(HERE / "server.py"), "--port", str(port)]
    command += ["--processes", str(processes), "--folder", str(folder)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE)
    url = f"http://127.0.0.1:{port}"
    try:
        while not _answers(url):
            if server.poll() is not None:
                raise SystemExit("the server of known speed did not start")
            time.sleep(0.05)
        yield url
    finally:
        server.communicate()  # its input ends, and so does it


def _answers(url: str) -> bool:
    try:
        return Endpoint(url).get("/base/none/health", timeout_s=2).status == 200
    except NoReplyError:
        return False


@contextmanager
def running_clients(engine: str, log: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Run the process with SGLang's client in it; yield what runs one request there."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [engine, str(HERE / "clients.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env=_engine_env(),
        )
        assert process.stdin and process.stdout
        answers, requests = process.stdout, process.stdin

        def ask(request: Mapping[str, Any] | None) -> None:
            if request is not None:
                requests.write(json.dumps(request) + "\n")
                requests.flush()
            answer = answers.readline()
            if not answer:
                raise SystemExit(f"the clients' process ended:\n{log.read_text()[-2000:]}")
            if error := json.loads(answer).get("error"):
                print(f"  {error}", flush=True)

        try:
            ask(None)  # it says when it is ready
            yield ask
        finally:
            requests.close()
            process.wait()


def main() -> None:
    """Run everything and write the two documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = (*ADAPTERS, *others.names())
    parser.add_argument("--engine", help="an interpreter that has sglang")
    parser.add_argument("--clients", nargs="+", default=list(every), choices=every)
    parser.add_argument("--faults", nargs="*", default=FAULTS, choices=FAULTS)
    parser.add_argument("--curve", type=int, nargs="*", default=[1, 4, 16, 64, 256, 512, 1024])
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--output", type=Path, default=DOCUMENT)
    parser.add_argument("--add", action="store_true", help="keep what --output says of the rest")
    options = parser.parse_args()
    if SGLANG in options.clients and not options.engine:
        parser.error("SGLang's clients need --engine")
    for name in set(options.clients) & set(others.names()):
        others.environment(name)
    known = json.loads(options.output.read_text()) if options.add else {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as held:
        folder = Path(name)
        url = held.enter_context(running_server(folder, options.processes))
        ask = no_engine
        if SGLANG in options.clients:
            ask = held.enter_context(running_clients(options.engine, folder / "clients.log"))
        bench = Bench(url, folder, options.engine, ask)
        faults, curve = known.get("faults", {}), known.get("curve", {})
        now = part(options.clients)
        measured = [*known.get("measured", []), now]
        for name in options.faults:
            faults = merged(faults, measure_faults(bench, [name], options.clients))
            now["faults"].append(name)
            write(options.output, document(faults, curve, measured))
        for level in options.curve:
            curve = merged(curve, measure_curve(bench, [level], options.clients))
            now["curve"].append(level)
            write(options.output, document(faults, curve, measured))


def write(output: Path, found: Mapping[str, Any]) -> None:
    """Write both documents; after each part, so that none is lost."""
    output.write_text(json.dumps(found, indent=1) + "\n")
    output.with_suffix(".md").write_text(page(json.loads(output.read_text())))


def merged(
    known: Mapping[str, dict[str, Figures]], new: Mapping[str, dict[str, Figures]]
) -> dict[str, dict[str, Figures]]:
    """Return both tables as one; what was measured now stands for what was measured before."""
    names = dict.fromkeys([*known, *new])
    return {name: known.get(name, {}) | new.get(name, {}) for name in names}


def no_engine(request: Mapping[str, Any]) -> None:
    """Stand where SGLang's clients would be asked."""
    raise SystemExit("SGLang's clients need --engine")


def page(found: Mapping[str, Any]) -> str:
    """Return docs/client-truth.md."""
    from page import client_truth

    return client_truth(found)


if __name__ == "__main__":
    main()
