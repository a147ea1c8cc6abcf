"""Load clients, one like the other: each runs a job and leaves records of what it saw."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from bringup.load.client import API_KEY, TIMEOUT, ordinary_ids
from bringup.load.prompts import RANDOM
from bringup.load.workload import Job

Name = Literal["direct", "sglang"]

Bench = Callable[[list[str], Path], object]
"""Runs `bringup.load.client.run` (argv, output) in the engine's interpreter; raises OSError where
that could not be done."""


def check(experiment: str, sweep: Mapping[str, Any]) -> None:
    """Hold a sweep's settings against what its client can do.

    Raises:
        ValueError: the client can't do what is asked.
    """
    if sweep["client"] == "sglang" and (sweep["rate"] or sweep["prompts"] != RANDOM):
        raise ValueError(
            f"experiments.{experiment}.sweep: client sglang sends closed loops of random tokens "
            "only; right: client: direct, or neither rate: nor prompts:"
        )


class Client(Protocol):
    """What sends a load.

    ``client(job, output)`` writes the records of a run (`bringup.load.records`) to ``output``, an
    absolute path.  It raises OSError where that could not be done, which says nothing about the
    server; requests that fail are no error, their records say so.
    """

    def __call__(self, job: Job, output: Path) -> None: ...


def direct(job: Job, output: Path) -> None:
    """Send a load by `bringup.load.direct`, in a process of its own.

    Raises:
        OSError: it ended without records.
    """
    prompts = job.workload.prompts
    asked = {
        "url": job.url,
        "api_key": job.api_key,
        "model": job.model,
        "prompts": prompts and prompts.conversations,
        "ids": None if prompts else ordinary_ids(job.model),
        "input_tokens": job.workload.input_tokens,
        "output_tokens": job.workload.output_tokens,
        "requests": job.requests,
        "concurrency": job.workload.concurrency,
        "seed": job.seed,
        "schedule_s": job.workload.schedule_s(job.requests, job.seed),
        "timeout_s": job.workload.timeout_s,
        "output": str(output),
    }
    command = [sys.executable, "-m", "bringup.load.direct"]
    ended = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    if ended.returncode:
        why = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        raise OSError(f"the load client failed: {why[0]}")


def sglang(bench: Bench) -> Client:
    """Return SGLang's own client: closed loops of random tokens only."""

    def run(job: Job, output: Path) -> None:
        bench(arguments(job, str(output.with_suffix(".bench_serving.jsonl"))), output)

    return run


def arguments(job: Job, output: str) -> list[str]:
    """Return the arguments of ``sglang.bench_serving`` for one run (names of 0.5.13 to 0.5.23).

    Lengths are exact: ``--random-range-ratio 1``, and the prompt is sent as token ids.  Special
    tokens are shown: an answer to random tokens may consist of nothing else, and the client sees
    tokens by their text.  The client's own warm-up and its progress bar are off.
    """
    workload = job.workload
    sampling = {
        "temperature": 0.0,
        "max_new_tokens": workload.output_tokens,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    return [
        *("--backend", "sglang", "--base-url", job.url, "--model", job.model),
        *("--tokenizer", job.model, "--dataset-name", "random-ids", "--tokenize-prompt"),
        *("--random-input-len", str(workload.input_tokens)),
        *("--random-output-len", str(workload.output_tokens), "--random-range-ratio", "1"),
        *("--num-prompts", str(job.requests), "--max-concurrency", str(workload.concurrency)),
        *("--extra-request-body", json.dumps({"sampling_params": sampling})),
        *("--seed", str(job.seed), "--warmup-requests", "0", "--disable-tqdm"),
        *("--output-file", output, TIMEOUT, f"{workload.timeout_s:g}"),
        *((API_KEY, job.api_key) if job.api_key else ()),
    ]
