"""A real Slurm of two nodes, and copies of the project whose stages only leave their mark."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.slurm import LONGEST_S, Slurm, missing
from project import PROJECT, Copy

PLUGIN = PROJECT / "plugins/slurm-experiments"

NODES = "nodes: {cpu: {cores: 1, ram_gib: 4, partition: all}}\n"
CONFIG = """\
checkpoints: {small: {path: resources/arithmetic-moe/bf16}}
engines: {stock: {version: 0.5.23}}
defaults: {checkpoint: small, engine: stock, kernels: false, sweep: {concurrency: [1, 2]}}
experiments: {one: {}, two: {}, three: {}, four: {}}
"""

STAND_IN = '''\
"""Stands in for a stage: uses a server, waits while told to, and writes where it was."""
import json, os, sys, time
from pathlib import Path
from bringup.resident import Spec, running

stage, told = snakemake.rule, Path("told")
name = getattr(snakemake.wildcards, "experiment", stage)
node, job = os.environ.get("SLURMD_NODENAME"), os.environ.get("SLURM_JOB_ID")
made = {"status": "ok", "weights_bytes": 0, "device": "cpu", "node": node}
told.mkdir(exist_ok=True)
with (told / "begun").open("a") as begun:
    print(name, stage, *snakemake.wildcards[1:], node, job, file=begun)
while (told / f"hold.{name}.{stage}").exists():
    time.sleep(0.1)
if (told / f"fail.{name}.{stage}").exists():
    raise SystemExit("told to fail")
if stage in ("launch", "probe", "point", "kernels"):
    server = Spec(f"stand-in-{name}", ("sleep", "3600"))
    with running(server, log=Path(f"told/{name}.log"), idle_s=600) as state:
        made |= {"boot": state.boot, "pid": state.pid}
for output in snakemake.output:
    Path(output).write_text(json.dumps(made))
raise SystemExit(0)
'''


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip all, from one place: pytest sums it up in one line."""
    if absent := missing():
        pytest.skip(f"no Slurm: {absent}")
    if not importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        pytest.skip("snakemake-executor-plugin-slurm is not installed: uv sync --extra slurm")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm that runs; both of its nodes are this machine."""
    with Slurm(tmp_path_factory.mktemp("slurm")).running() as running:
        yield running


@pytest.fixture(scope="session")
def planned(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with stand-ins in which all is planned and nothing is launched."""
    study = Study(slurm, Copy(tmp_path_factory.mktemp("planned")).home)
    (study.home / "config/experiments.yaml").write_text(CONFIG)
    (study.home / "profiles/slurm/nodes.yaml").write_text(NODES)
    for script in (study.home / "workflow/scripts").glob("*.py"):
        script.write_text(STAND_IN)
    done = study.run("--until", "plan", "--executor", "local", "--cores", "1")
    assert done.returncode == 0, done.stderr
    return study.home


@pytest.fixture
def study(slurm: Slurm, planned: Path, tmp_path: Path) -> Iterator[Study]:
    """A copy of the planned project; what its test leaves running is ended."""
    shutil.copytree(planned, tmp_path / "study", symlinks=True)
    mine = Study(slurm, tmp_path / "study")
    mine.forget()
    yield mine
    mine.end()


class Study:
    """A project below a folder that both nodes see."""

    def __init__(self, slurm: Slurm, home: Path) -> None:
        self.slurm = slurm
        self.home = home
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        """Start Snakemake with the cluster's profile."""
        quick = ("--slurm-experiments-init-seconds-before-status-checks", "2")
        paths = [str(self.home / "src"), str(PLUGIN), os.environ.get("PYTHONPATH", "")]
        process = subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--profile", "profiles/slurm", *quick,
             "--latency-wait", "5", *arguments, "--", "results/report.md"],
            cwd=self.home,
            env={**self.slurm.environment, "PYTHONPATH": ":".join(filter(None, paths)), **extra},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )  # fmt: skip
        self._running.append(process)
        return process

    def run(
        self, *arguments: str, timeout_s: float = LONGEST_S, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake to its end; ``stderr`` holds all that it printed."""
        process = self.start(*arguments, **extra)
        output, _ = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, stderr=output)

    def end(self) -> None:
        """End what is left."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.slurm.ask("scancel", "--user=root")

    def hold(self, name: str, stage: str) -> Callable[[], None]:
        """Let a stage wait when it gets there, until the function returned is called."""
        flag = self.home / f"told/hold.{name}.{stage}"
        flag.touch()
        return flag.unlink

    def fail(self, name: str, stage: str) -> Callable[[], None]:
        """Let a stage fail, until the function returned is called."""
        flag = self.home / f"told/fail.{name}.{stage}"
        flag.touch()
        return flag.unlink

    def begun(self) -> list[list[str]]:
        """Return ``[experiment, stage, …, node, Slurm job]`` of each job so far."""
        return [line.split() for line in (self.home / "told/begun").read_text().splitlines()]

    def forget(self) -> None:
        """Forget the jobs so far."""
        (self.home / "told/begun").write_text("")
