"""Real SGLang servers on two nodes of a real Slurm: the same report as on one machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bringup import hardware
from bringup.resident import Home
from cluster.conftest import Study
from project import PROJECT, Copy

pytestmark = pytest.mark.real

CONFIG = """\
checkpoints: {small: {path: resources/arithmetic-moe/bf16}}
engines: {stock: {version: 0.5.23}}
defaults:
  checkpoint: small
  engine: stock
  kernels: false
  probes: {suites: [arithmetic]}
  server: {max-total-tokens: 8192, max-running-requests: 16, mem-fraction-static: 0.3}
  env: {OMP_NUM_THREADS: 1}
  sweep: {concurrency: [1], input_tokens: 64, output_tokens: 16, repeats: 1, min_seconds: 1}
experiments:
  one: {}
  two: {server: {max-running-requests: 8}}
  three: {server: {max-running-requests: 4}}
  four: {server: {chunked-prefill-size: 512}}
"""
NAMES = ("one", "two", "three", "four")


def project(home: Path) -> Path:
    """Return a copy of the project with the study in it."""
    copy = Copy(home)
    (home / "config/experiments.yaml").write_text(CONFIG)
    here = hardware.fingerprint({"gpus": []})
    node = {
        "cores": here["cpu"]["cores"],
        "cpus": 1,
        "ram_gib": here["ram_gib"],
        "partition": "all",
    }
    (home / "profiles/slurm/nodes.yaml").write_text(json.dumps({"nodes": {"cpu": node}}))
    return copy.home


def environment() -> dict[str, str]:
    """Engines are those that the project has; there is no GPU."""
    cache = os.environ.get("BRINGUP_CACHE") or str(PROJECT / ".cache")
    return {"BRINGUP_CACHE": cache, "CUDA_VISIBLE_DEVICES": ""}


def told(home: Path) -> dict[str, object]:
    """Return what the report says, without what was measured."""
    report = json.loads((home / "results/report.json").read_text())
    kept = ("name", "study", "status", "stage", "cause", "engine", "formats", "reading", "backends")
    return {
        each["name"]: {
            **{key: each[key] for key in kept},
            "points": [(point["concurrency"], point["status"]) for point in each["points"]],
        }
        for each in report["experiments"]
    }


def machine(home: Path) -> object:
    """Return what the report says of the machine."""
    return json.loads((home / "results/report.json").read_text())["machine"]


def files(home: Path) -> set[str]:
    """Return the results' files, without the logs that only a cluster has."""
    found = {str(path.relative_to(home)) for path in (home / "results").rglob("*.json")}
    return {path for path in found if "hardware/" not in path}


def on_cluster(study: Study) -> None:
    """Run the study on both nodes; see that it was whole and left nothing behind."""
    done = study.run(timeout_s=800, **environment())
    assert done.returncode == 0, done.stderr
    logs = study.home / "results/logs/slurm"
    assert {path.parent.name for path in logs.rglob("*.log")} >= {f"group_{n}" for n in NAMES}
    for name in NAMES:
        log = (study.home / f"results/experiments/{name}/server.log").read_text()
        assert log.count("[bringup ") and " boot " in log
        assert len(list((study.home / f"results/experiments/{name}").glob("server*.log"))) == 1
    assert not study.slurm.jobs()
    for node in ("n1", "n2"):
        used = study.slurm.home / f"local.{node}/run"
        assert used.is_dir(), f"{node} had nothing to do"
        assert not [path for path in used.iterdir() if Home(path).is_alive()]


def on_this_machine(home: Path) -> None:
    """Run the study without a cluster."""
    copy = Copy.__new__(Copy)
    copy.home = home
    done = copy.snakemake("results/report.md", timeout_s=800, **environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(1800)
def test_the_same_report_as_on_one_machine(slurm, tmp_path):
    """Four experiments, two at a time, against the same four one after the other."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "alone").mkdir()
    study, alone = Study(slurm, project(tmp_path / "cluster")), project(tmp_path / "alone")
    try:
        on_cluster(study)
    finally:
        study.end()
    on_this_machine(alone)
    assert told(study.home) == told(alone)
    assert machine(study.home) == machine(alone)
    assert files(study.home) == files(alone)
    for name in NAMES:
        plan = f"results/experiments/{name}/plan.json"
        assert (study.home / plan).read_text() == (alone / plan).read_text()
