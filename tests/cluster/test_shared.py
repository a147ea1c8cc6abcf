"""Two nodes want the same thing at once: it is made or fetched once, and both go on."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.slurm import Slurm, until
from project import PROJECT
from unit import hub as hubs
from unit.tensor_files import write, write_folder

UV = """#!{python} -I
import os, pathlib, sys, time
folder = pathlib.Path({folder!r})
if sys.argv[1] == "venv":
    with (folder / "begun").open("a") as begun:
        begun.write(os.environ["SLURMD_NODENAME"] + "\\n")
    while (folder / "hold").exists():
        time.sleep(0.1)
    python = pathlib.Path(sys.argv[-1]) / "bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(os.environ["SLURMD_NODENAME"])
"""
"""Stands in for uv: making an environment takes as long as it is told to."""

BUILD = """
import sys
sys.executable = {python!r}  # uv is looked for beside it
from bringup.engine import environment
print("ready:", environment.ensure("0.5.23").read_text())
"""
FETCH = """
from bringup import checkpoint
found = checkpoint.weights(checkpoint.metadata({"repo": "maker/model"}, name="it"))
print("ready:", [each["name"] for each in found["files"] if each["name"].endswith("s")])
"""


class Jobs:
    """Python programs, each on a node of its own, below one folder that both see."""

    def __init__(self, slurm: Slurm, home: Path) -> None:
        self.slurm = slurm
        self.home = home

    def send(self, node: str, program: str, **variables: str) -> None:
        """Run a program on a node."""
        told = {"PYTHONPATH": str(PROJECT / "src"), "BRINGUP_CACHE": str(self.home / "cache")}
        command = ["env", *(f"{name}={value}" for name, value in (told | variables).items())]
        self.slurm.ask(
            "sbatch",
            "--no-requeue",
            f"--nodelist={node}",
            f"--chdir={self.home}",
            f"--output={self.home / node}",
            "--wrap",
            shlex.join([*command, sys.executable, "-c", program]),
        )

    def said(self, node: str) -> str:
        """Return what the program on a node has printed so far."""
        log = self.home / node
        return log.read_text() if log.exists() else ""

    def begun(self) -> list[str]:
        """Return the nodes on which an environment began to be made, in order."""
        log = self.home / "begun"
        return log.read_text().split() if log.exists() else []


@pytest.fixture
def jobs(slurm: Slurm, tmp_path: Path) -> Iterator[Jobs]:
    yield Jobs(slurm, tmp_path)
    slurm.ask("scancel", "--user=root")
    until(lambda: not slurm.jobs(), "the end of all jobs")


@pytest.fixture
def build(jobs: Jobs) -> str:
    """Return a program that wants an engine's environment, which takes until ``hold`` is gone."""
    uv = jobs.home / "uv"
    uv.write_text(UV.format(python=sys.executable, folder=str(jobs.home)))
    uv.chmod(0o755)
    (jobs.home / "hold").touch()
    return BUILD.format(python=str(jobs.home / "python"))


def somebody_waits(folder: Path) -> bool:
    """Tell whether a process of this machine waits for a lock below ``folder`` (proc(5))."""
    inodes = {str(path.stat().st_ino) for path in folder.glob("*.lock")}
    waiting = [
        line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line
    ]
    return any(words[6].rpartition(":")[2] in inodes for words in waiting)


def both_want_it(jobs: Jobs, build: str) -> str:
    """Let both nodes want the environment; return the one that makes it, the other one waits."""
    jobs.send("n1", build)
    jobs.send("n2", build)
    until(jobs.begun, "the first build")
    until(lambda: somebody_waits(jobs.home / "cache/envs"), "the other node")
    return jobs.begun()[0]


def test_two_nodes_want_the_same_engine(jobs, build):
    first = both_want_it(jobs, build)
    assert jobs.begun() == [first]
    (jobs.home / "hold").unlink()
    for node in ("n1", "n2"):
        until(lambda node=node: "ready:" in jobs.said(node), f"{node}: {jobs.said(node)}")
        assert f"ready: {first}\n" in jobs.said(node)
    assert jobs.begun() == [first]


def test_the_node_that_builds_an_engine_is_lost(jobs, build):
    """The other one gets the lock, throws away what is half made, and makes it."""
    first = both_want_it(jobs, build)
    (other,) = {"n1", "n2"} - {first}
    slurm = jobs.slurm
    slurm.ask("scontrol", "update", f"nodename={first}", "state=down", "reason=test")
    try:
        until(lambda: jobs.begun() == [first, other], "a build on the other node")
        (jobs.home / "hold").unlink()
        until(lambda: "ready:" in jobs.said(other), "the other node")
    finally:
        slurm.ask("scontrol", "update", f"nodename={first}", "state=resume")
        until(lambda: set(slurm.states().values()) == {"IDLE"}, "two idle nodes")
    assert f"ready: {other}\n" in jobs.said(other)
    assert "ready:" not in jobs.said(first)


def test_two_nodes_want_the_same_checkpoint(jobs):
    model = write_folder(jobs.home / "model", {"architectures": ["LlamaForCausalLM"]}, {})
    shard = write(model / "model.safetensors", {"w": ("U8", [4 << 20])})
    with shard.open("r+b") as file:
        file.seek(-(4 << 20), os.SEEK_END)
        file.write(os.urandom(4 << 20))
    with hubs.running() as hub:
        hub.add("maker/model", model)
        hub.rate = 50e3  # until the second one waits for it
        where = {"HF_ENDPOINT": hub.url, "HF_HOME": str(jobs.home / "hf")}
        jobs.send("n1", FETCH, **where)
        jobs.send("n2", FETCH, **where)
        waits = "maker/model: another job fetches it; waiting"
        until(lambda: waits in jobs.said("n1") + jobs.said("n2"), "the second job")
        hub.rate = None
        for node in ("n1", "n2"):
            until(lambda node=node: "ready:" in jobs.said(node), f"{node}: {jobs.said(node)}")
            assert "ready: ['model.safetensors']\n" in jobs.said(node)
        whole = [each for each in hub.requests if each.sent == shard.stat().st_size]
        assert len(whole) == 1
