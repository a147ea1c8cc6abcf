"""Real SGLang releases: how they read checkpoints, and what a patch of ours does to one.

The engine environments are made where they are missing, below ``BRINGUP_CACHE``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_configs import CASES

from bringup import artifact, checkpoint, formats, paths, reading
from bringup.engine import environment, worker

pytestmark = pytest.mark.real

BEFORE = "0.5.13.post1"
"""The last release without PR #25820."""

NOW = "0.5.23"

READY_S = 240.0


@pytest.fixture(scope="module")
def now(real_engine) -> artifact.Document:
    return real_engine


@pytest.fixture(scope="module")
def before(build_engine) -> artifact.Document:
    return build_engine(BEFORE)


@pytest.fixture(scope="module")
def patched(build_engine) -> artifact.Document:
    return build_engine(NOW, {"file": "config/patches/announce.patch"}, {"pr": 25820})


def read(case: str, build: artifact.Document, folder: Path) -> artifact.Document:
    """Read a case as the pipeline does: metadata, detect, reading."""
    entry = {"path": str(CASES[case].write(folder / case))}
    metadata = checkpoint.metadata(entry, name=case)
    return reading.read(metadata, formats.detect(metadata), build, log=folder / "reading.log")


@pytest.mark.parametrize("case", CASES)
def test_the_default_engine_reads_every_form_as_what_it_is(now, tmp_path, case):
    """All in one start of its interpreter."""
    found = read(case, now, tmp_path)
    assert found["verdict"] == "agrees", found["message"]
    assert found["experts"] == CASES[case].experts
    assert found["architecture_known"] is True


def test_the_release_before_the_pull_request_misreads_deepseek(before, tmp_path):
    found = read("deepseek-v4-nvfp4", before, tmp_path)
    assert found["verdict"] == "misreads"
    assert found["quantization"] == "fp8"
    assert found["experts"] == "mxfp4"
    assert found["fixed_by"] == "PR #25820 (in 0.5.14)"


def test_and_takes_mixed_checkpoints_for_w4afp8(before, tmp_path):
    found = read("mixed", before, tmp_path)
    assert (found["verdict"], found["quantization"]) == ("misreads", "w4afp8")
    assert found["fixed_by"] == "SGLang 0.5.15.post1"


def test_what_it_registers_with_cuda_only_is_no_refusal(before, tmp_path):
    assert read("mxfp4", before, tmp_path)["verdict"] == "unknown"


def test_choices_and_flags_are_the_builds_own(before, now):
    """Facts of the wheels: marlin is in both, humming came later; a flag changed its name."""
    assert "marlin" in before["choices"]["moe-runner-backend"]
    assert "humming" not in before["choices"]["moe-runner-backend"]
    assert "humming" in now["choices"]["moe-runner-backend"]
    assert "cuda-graph-max-bs" in before["flags"]
    assert "cuda-graph-max-bs" not in now["flags"]
    assert now["renamed"]["cuda-graph-max-bs"] == "cuda-graph-max-bs-decode"


def test_the_request_is_in_the_tree_and_the_patch_is_what_is_imported(patched, now):
    outcomes = [patch["outcome"] for patch in patched["patches"]]
    assert outcomes == ["applied", "already-in-tree"]
    assert patched["tree"] != now["tree"]
    assert patched["freeze"] == now["freeze"]
    assert patched["file"].startswith("{cache}/overlays/")


@contextlib.contextmanager
def served(document: artifact.Document, log: Path) -> Iterator[str]:
    """Serve the small arithmetic checkpoint on the CPU; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pythonpath = [paths.actual(each) for each in document["pythonpath"]]
    command = [
        str(paths.actual(document["python"])), "-m", "sglang.launch_server",
        "--model-path", str(paths.PROJECT / "resources/arithmetic-moe/bf16"),
        "--host", "127.0.0.1", "--port", str(port), "--device", "cpu",
        "--max-total-tokens", "8192", "--max-running-requests", "8",
        "--mem-fraction-static", "0.3",
    ]  # fmt: skip
    with log.open("w") as stream:
        server = subprocess.Popen(
            command,
            env=environment.variables(pythonpath, stand_in=True),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_S
        while not healthy(url):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except OSError:
        return False


def test_the_patch_shows_in_the_log_and_in_an_answer_and_its_engine_can_bench(patched, tmp_path):
    log = tmp_path / "server.log"
    with served(patched, log) as url:
        with urllib.request.urlopen(f"{url}/model_info", timeout=10) as answer:
            assert json.load(answer)["patched"] == "announce of sglang-bringup"
        output = tmp_path / "records.json"
        arguments = [
            "--backend", "sglang", "--base-url", url, "--dataset-name", "random-ids",
            "--num-prompts", "2", "--random-input-len", "8", "--random-output-len", "8",
            "--random-range-ratio", "1", "--max-concurrency", "1", "--seed", "1",
            "--tokenizer", str(paths.PROJECT / "resources/arithmetic-moe/bf16"),
            "--output-file", str(tmp_path / "summary.jsonl"),
        ]  # fmt: skip
        request = {"command": "bench", "argv": arguments, "output": str(output)}
        done = worker.ask(patched, request, log=tmp_path / "bench.log")
        assert done["ok"], done
        records = json.loads(output.read_text())["records"]
        assert [record["error"] for record in records[-2:]] == [None, None]
    said = "This SGLang carries the patch announce of sglang-bringup."
    deadline = time.monotonic() + 10
    while said not in log.read_text():
        assert time.monotonic() < deadline, "the line comes after the first answers"
        time.sleep(0.1)
