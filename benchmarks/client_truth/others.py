"""Load clients that are programs of their own: how each is run, and where its figures stand.

Each is installed in an environment of its own, below ``.cache/clients`` (or ``BRINGUP_CACHE``):
aiperf takes 0.8 GB, guidellm 5 GB.  Delete the folder when the measurement is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup import paths
from bringup.load.workload import Job

VERSIONS = {"aiperf": "0.13.0", "guidellm": "0.8.1"}

LONGEST_S = 120
"""A client that takes longer for one run has failed at it."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Other:
    """A client: its command for a job, and how its figures are read from a folder that it wrote."""

    command: Callable[[Job, Path], list[str]]
    read: Callable[[Path], Figures]


def run(name: str, job: Job, folder: Path) -> Figures:
    """Run a client; return its own figures, ``completed`` 0 where it failed."""
    folder.mkdir()
    client = OTHERS[name]
    program, *arguments = client.command(job, folder)
    command = [str(environment(name) / "bin" / program), *arguments]
    said = folder / "said.txt"
    try:
        with (
            said.open("w") as output,
            subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            ) as process,
        ):
            try:
                process.wait(LONGEST_S)
            finally:
                end(process)
        return client.read(folder)
    except (OSError, ValueError, LookupError, StopIteration, subprocess.TimeoutExpired) as error:
        print(f"  {name}: {type(error).__name__}: {said.read_text()[-600:].strip()}", flush=True)
        return {"ttft_ms": None, "tpot_ms": None, "output_tok_s": None, "completed": 0}


def end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a client: its workers outlive it where it is killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def environment(name: str) -> Path:
    """Return the client's environment, made the first time."""
    home = paths.cache() / "clients" / f"{name}-{VERSIONS[name]}"
    if not (home / "bin" / name).exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "--clear", str(home)], check=True)
        wanted = f"{name}=={VERSIONS[name]}"
        python = str(home / "bin" / "python")
        subprocess.run([uv, "pip", "install", "-q", "--python", python, wanted], check=True)
    return home


def _aiperf(job: Job, folder: Path) -> list[str]:
    load = job.workload
    return [
        *("aiperf", "profile", "--url", job.url, "--endpoint", "/v1/chat/completions"),
        *("--model", "truth", "--tokenizer", job.model, "--endpoint-type", "chat", "--streaming"),
        *("--concurrency", str(load.concurrency), "--request-count", str(job.requests)),
        *("--isl", str(load.input_tokens), "--isl-stddev", "0"),
        *("--osl", str(load.output_tokens), "--osl-stddev", "0", "--use-server-token-count"),
        *("--extra-inputs", "ignore_eos:true", "--random-seed", str(job.seed)),
        *("--ui", "none", "--artifact-dir", str(folder)),
    ]


def _aiperf_figures(folder: Path) -> Figures:
    found = json.loads(next(folder.rglob("profile_export_aiperf.json")).read_text())
    return {
        "ttft_ms": found["time_to_first_token"]["p50"],
        "tpot_ms": found["inter_token_latency"]["p50"],
        "output_tok_s": found["output_token_throughput"]["avg"],
        "completed": int(found["request_count"]["avg"]),
    }


def _guidellm(job: Job, folder: Path) -> list[str]:
    load = job.workload
    return [
        *("guidellm", "run", "--backend", _kind("openai_http", target=job.url, model="truth")),
        *("--profile", _kind("concurrent", streams=[load.concurrency])),
        *("--constraint", _kind("max_requests", count=job.requests)),
        *("--tokenizer", _kind("huggingface_auto", model=job.model)),
        "--data",
        _kind("synthetic_text", prompt_tokens=load.input_tokens, output_tokens=load.output_tokens),
        *("--output", _kind("json", path=str(folder / "report.json")), "--disable-console"),
    ]


def _kind(kind: str, **settings: Any) -> str:
    return json.dumps({"kind": kind, **settings})


def _guidellm_figures(folder: Path) -> Figures:
    """Its time per output token includes the first; the one between tokens is what others call so.

    Its throughput is a distribution over time; tokens over duration is what others give.
    """
    found = json.loads((folder / "report.json").read_text())["benchmarks"][0]
    metrics = found["metrics"]
    tokens = metrics["output_token_count"]["successful"]["total_sum"]
    return {
        "ttft_ms": metrics["time_to_first_token_ms"]["successful"]["median"],
        "tpot_ms": metrics["inter_token_latency_ms"]["successful"]["median"],
        "output_tok_s": tokens / found["duration"] if found["duration"] else None,
        "completed": metrics["request_totals"]["successful"],
    }


OTHERS = {
    "aiperf": Other(_aiperf, _aiperf_figures),
    "guidellm": Other(_guidellm, _guidellm_figures),
}


def names() -> Sequence[str]:
    """Return the clients' names."""
    return tuple(OTHERS)
