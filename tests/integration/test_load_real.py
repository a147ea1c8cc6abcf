"""The load clients of real SGLang releases, against a server whose speed is known.

No model is served: the server is the one of benchmarks/client_truth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bringup import artifact, paths
from bringup.engine import worker
from bringup.load import definitions, records
from bringup.load.clients import arguments
from bringup.load.workload import Job, Workload

sys.path.insert(0, str(paths.PROJECT / "benchmarks" / "client_truth"))

from run import running_server, served

pytestmark = pytest.mark.real

RELEASES = ("0.5.13.post1", "0.5.23")
CHECKPOINT = paths.PROJECT / "resources" / "arithmetic-moe" / "bf16"
LOAD = Workload(concurrency=2, input_tokens=16, output_tokens=50, min_seconds=0)
REQUESTS = 6


@pytest.fixture(scope="module", params=RELEASES)
def build(
    request: pytest.FixtureRequest, build_engine: Callable[..., artifact.Document]
) -> artifact.Document:
    return build_engine(request.param)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The server's address, and the folder of what it did."""
    folder = tmp_path_factory.mktemp("truth")
    with running_server(folder, processes=1) as url:
        yield url, folder


def run(
    build: artifact.Document, server: tuple[str, Path], scenario: str, folder: Path
) -> tuple[records.Run, list[records.Record]]:
    """Return what the client recorded and what the server did."""
    url, truth = server
    name = f"{scenario}-{build['version']}"
    output = folder / "records.json"
    job = Job(LOAD, f"{url}/{scenario}/{name}", str(CHECKPOINT), REQUESTS, seed=1)
    argv = arguments(job, str(folder / "summary.jsonl"))
    request = {"command": "bench", "argv": argv, "output": str(output)}
    answer = worker.ask(build, request, log=folder / "client.log")
    assert answer["ok"], answer
    seen = records.read(output)
    done = sum(record.error is None for record in seen.records)
    return seen, served(truth, name, done)[0]


@pytest.mark.parametrize("scenario", ["base", "early-stop", "chunks-of-20", "bundled-first"])
def test_figures_are_what_the_server_did(
    build: artifact.Document, server: tuple[str, Path], scenario: str, tmp_path: Path
) -> None:
    seen, truth = run(build, server, scenario, tmp_path)
    ours = definitions.figures(seen.records, LOAD.concurrency)
    real = definitions.figures(truth, LOAD.concurrency)
    assert ours["completed"] == REQUESTS
    assert (ours["output_tokens"], ours["input_tokens"]) == (real["output_tokens"], 16 * REQUESTS)
    assert [r.first_chunk_tokens for r in seen.records] == [r.first_chunk_tokens for r in truth]
    assert ours["tpot_ms"]["p50"] == pytest.approx(real["tpot_ms"]["p50"], rel=0.05)
    assert ours["output_tok_s"] == pytest.approx(real["output_tok_s"], rel=0.05)
    assert ours["ttft_ms"]["p50"] == pytest.approx(real["ttft_ms"]["p50"], abs=50)
    assert seen.client.version == build["version"]


def test_errors_inside_http_200_complete_nothing(
    build: artifact.Document, server: tuple[str, Path], tmp_path: Path
) -> None:
    seen, _ = run(build, server, "error-in-200", tmp_path)
    assert [record.error for record in seen.records] == ["HTTP 200 and not one token"] * REQUESTS


def test_control_calls_are_outside_the_window(
    build: artifact.Document, server: tuple[str, Path], tmp_path: Path
) -> None:
    """/server_info takes 3 s; two rounds and a half of 0.69 s do not."""
    seen, _ = run(build, server, "slow-info", tmp_path)
    duration = definitions.figures(seen.records, LOAD.concurrency)["duration_s"]
    assert duration is not None and duration < 3 * 0.69 + 1
