"""Experiments on a machine of five simulated GPUs, one of them taken, through Snakemake."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bringup import artifact, engine
from bringup.resident import Home
from project import PROJECT, Copy
from unit import fake_engine

SERVER = PROJECT / "tests/unit/fake_server.py"
GPUS = [f"GPU-{index:08d}-simulated" for index in range(5)]
LAG_S = 2.0

CONFIG = """\
checkpoints:
  small: {path: resources/arithmetic-moe/bf16}
engines:
  stock: {version: 0.5.23}
experiments:
  one: {checkpoint: small, engine: stock, server: {tp: 2}}
  two: {checkpoint: small, engine: stock, server: {pp: 2}}
  four: {checkpoint: small, engine: stock, server: {tp: 2, pp: 2}}
"""
NEEDED = {"one": 2, "two": 2, "four": 4}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[artifact.Document]:
    """The engine document of an interpreter with something that answers like SGLang."""
    folder = tmp_path_factory.mktemp("engine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_RUN", str(folder / "run"))
        patch.setenv("BRINGUP_CACHE", str(folder / "cache"))
        python = fake_engine.make(folder / "venv")
        log = folder / "engine.log"
        yield engine.build({"python": str(python)}, engine_name="stock", cuda=True, log=log)
        for home, _ in Home.all_live():
            home.stop()


def prepare(home: Path, build: artifact.Document) -> None:
    """Write what comes before the servers by hand."""
    (home / "config/experiments.yaml").write_text(CONFIG)
    artifact.write(home / "results/engines/stock/engine.json", build)
    for name, gpus in NEEDED.items():
        folder = home / "results/experiments" / name
        artifact.write(
            folder / "plan.json",
            artifact.document(
                "plan/1",
                experiment=name,
                python=build["python"],
                argv=[
                    *("-IS", str(SERVER), "--load-s", "4"),
                    *("--model-path", "{model}", "--port", "{port}"),
                ],
                flags=[],
                env={},
                pythonpath=[],
                gpus=gpus,
                startup_max_s=60,
            ),
        )
        weights = {"snapshot": "resources/arithmetic-moe/bf16", "draft": None}
        artifact.write(folder / "weights.json", artifact.document("weights/1", **weights))


@pytest.fixture(scope="module")
def results(build: artifact.Document, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What plain ``--cores all`` makes of three experiments."""
    home = tmp_path_factory.mktemp("gpus")
    copy = Copy(home)
    prepare(home, build)
    done = copy.snakemake(
        *("--cores", "all"),
        *(f"results/experiments/{name}/server.json" for name in NEEDED),
        *("--allowed-rules", "launch"),
        PYTHONPATH=f"{PROJECT / 'tests/simulated'}:{home / 'src'}",
        CUDA_VISIBLE_DEVICES=",".join(GPUS),
        SIMULATED_GPUS="5",
        SIMULATED_FOLDER=str(home),
        BRINGUP_RUN=str(home / "run"),
        BRINGUP_LOCKS=str(home / "locks"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    experiments = home / "results/experiments"
    deadline = time.monotonic() + 10
    while not all("] ended (" in log.read_text() for log in experiments.glob("*/server.log")):
        assert time.monotonic() < deadline, "a server outlives its workflow"
        time.sleep(0.1)
    return experiments


def server(results: Path, name: str) -> Any:
    return artifact.read(results / name / "server.json")


def life(results: Path, name: str) -> tuple[datetime, datetime, str]:
    """Return when a server was started, when it had ended, and why it ended."""
    log = (results / name / "server.log").read_text()
    notes = re.findall(r"^\[bringup (\S+ \S+)\] (?:boot|ended \((\w+)\))", log, re.MULTILINE)
    (began, _), (ended, why) = notes
    return datetime.fromisoformat(began), datetime.fromisoformat(ended), why


def test_each_experiment_gets_its_number_of_gpus_and_none_that_is_taken(results: Path) -> None:
    assert {server(results, name)["status"] for name in NEEDED} == {"ok"}
    given = {name: server(results, name)["gpus"] for name in NEEDED}
    assert {name: len(gpus) for name, gpus in given.items()} == NEEDED
    assert not set(given["one"]) & set(given["two"])
    assert sorted(given["one"] + given["two"]) == sorted(given["four"]) == GPUS[1:]


def test_servers_are_pinned_to_their_gpus(results: Path) -> None:
    for name in NEEDED:
        log = (results / name / "server.log").read_text()
        assert f"CUDA_VISIBLE_DEVICES={','.join(server(results, name)['gpus'])}\n" in log


def test_experiments_on_other_gpus_load_at_once(results: Path) -> None:
    (began, ended, _), (other_began, other_ended, _) = (
        life(results, name) for name in ("one", "two")
    )
    assert max(began, other_began) < min(ended, other_ended)


def test_who_needs_most_gpus_comes_first(results: Path) -> None:
    assert min(NEEDED, key=lambda name: life(results, name)[0]) == "four"


def test_idle_servers_make_room_and_their_memory_is_waited_for(results: Path) -> None:
    lives = {name: life(results, name) for name in NEEDED}
    before, after = ["four"], ["one", "two"]
    assert {lives[name][2] for name in before} == {"stopped"}
    freed = max(lives[name][1] for name in before)
    waited = [(lives[name][0] - freed).total_seconds() for name in after]
    assert min(waited) >= LAG_S - 1  # the notes are cut to seconds


def test_versions_of_the_driver_are_told(results: Path) -> None:
    versions = server(results, "one")["versions"]
    assert (versions["driver"], versions["driver_cuda"]) == ("580.95.05", "13.1")
