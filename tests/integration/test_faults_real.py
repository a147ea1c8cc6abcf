"""However a run ends, nothing of it is left running, and the next run goes on from there.

Snakemake with the rules launch and probe, on the real server; what comes before them is written by
hand, so that every case costs one load at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bringup import artifact
from bringup.resident import Home, State
from bringup.resident.home import run_folder
from project import Copy

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CONFIG = """\
checkpoints:
  small: {path: resources/arithmetic-moe/bf16}
engines:
  stock: {version: 0.5.23}
experiments:
  it: &it {checkpoint: small, engine: stock}
  slow: *it
"""
ON_CPU = (
    *("--device", "cpu"),
    *("--max-total-tokens", "8192"),
    *("--mem-fraction-static", "0.3"),
)

GONE_S = 10.0
"""Longest time for which anything of a run may be left after it has ended."""


def planned(engine: artifact.Document, name: str, requests: int, startup_max_s: float) -> Any:
    """Return the plan of a server of the small checkpoint."""
    return artifact.document(
        "plan/1",
        experiment=name,
        python=engine["python"],
        argv=[
            *("-m", "sglang.launch_server"),
            *("--model-path", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
            *("--max-running-requests", str(requests), *ON_CPU),
        ],
        flags=[],
        env={"SGLANG_USE_CPU_ENGINE": "1"},
        pythonpath=engine["pythonpath"],
        gpus=0,
        startup_max_s=startup_max_s,
    )


class Project(Copy):
    """A copy of the project in which all is there but servers and what is asked of them."""

    def __init__(self, home: Path, engine: artifact.Document, *, requests: int = 16) -> None:
        super().__init__(home)
        (home / "config/experiments.yaml").write_text(CONFIG)
        artifact.write(home / "results/engines/stock/engine.json", engine)
        for name, limit in (("it", 600), ("slow", 3)):
            folder = home / "results/experiments" / name
            artifact.write(folder / "plan.json", planned(engine, name, requests, limit))
            weights = {"snapshot": "resources/arithmetic-moe/bf16"}
            artifact.write(folder / "weights.json", artifact.document("weights/1", **weights))
        self.folder = home / "results/experiments/it"

    def forget(self) -> None:
        """Remove what earlier runs have made."""
        for folder in (self.folder, self.folder.with_name("slow")):
            for made in [*folder.glob("serve*"), *folder.glob("probe.json")]:
                made.unlink()

    @contextlib.contextmanager
    def running(self, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Start Snakemake as a terminal does: with a process group of its own."""
        command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
        with self.said.open("wb") as sink:
            process = subprocess.Popen(
                [*command, "--allowed-rules", "launch", "probe"],
                cwd=self.home,
                env={
                    **os.environ,
                    "PYTHONPATH": str(self.home / "src"),
                    "CUDA_VISIBLE_DEVICES": "",
                },
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                **options,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @property
    def said(self) -> Path:
        """What the newest run printed."""
        return self.home / "said.txt"

    def ended(self, process: subprocess.Popen[bytes], within_s: float = 120) -> int:
        """Return a run's exit code once it has ended and nothing of it is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
        assert process.returncode is not None, self.said.read_text()
        until(lambda: not left(self.home), GONE_S, lambda: left(self.home))
        return process.returncode

    def read(self, name: str) -> artifact.Document:
        return artifact.read(self.folder / name)

    def boots(self) -> list[str]:
        """Return the boots that this project's logs of servers tell of, oldest first."""
        logs = [log.read_text(errors="replace") for log in self.folder.glob("server*.log")]
        return sorted(boot for log in logs for boot in re.findall(r"\] boot (\S+):", log))


@pytest.fixture(scope="module")
def project(
    real_engine: artifact.Document, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """The project, with a folder for running processes of its own."""
    home = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_RUN", str(home / "run"))
        yield Project(home, real_engine)
        for each, _ in Home.all_live():
            each.stop()


@pytest.fixture(autouse=True)
def afresh(project: Project) -> None:
    project.forget()


def until(happens: Callable[[], Any], within_s: float, told: Callable[[], Any] = lambda: "") -> Any:
    """Return what ``happens`` returns once that is true."""
    deadline = time.monotonic() + within_s
    while not (seen := happens()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)
    return seen


def left(home: Path) -> list[str]:
    """Return what still runs of the project: its jobs, supervisors, servers and their children."""
    states = [json.loads(file.read_text()) for file in run_folder().glob("*/state.json")]
    sessions = {state["pid"] for state in states if state["log"].startswith(str(home))}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            words = " ".join(process.cmdline())
            path = process.environ().get("PYTHONPATH", "")
            ours = str(home) in words or str(home) in path or os.getsid(process.pid) in sessions
            if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid}: {words[:200]}")
    return found


def job(run: subprocess.Popen[bytes], rule: str) -> psutil.Process | None:
    """Return the process of the script that a run executes for ``rule``."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(run.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if len(words) == 2 and words[1].endswith(f".{rule}.py"):
                    return process
    return None


def server() -> State | None:
    """Return the server that runs."""
    return next((state for _, state in Home.all_live() if state.ending is None), None)


def loading(run: subprocess.Popen[bytes], project: Project) -> psutil.Process:
    """Wait until the server loads; return the job that waits for it."""

    def seen() -> psutil.Process | None:
        log = project.folder / "server.log"
        starts = log.exists() and "server_args=" in log.read_text(errors="replace")
        return job(run, "launch") if starts and server() else None

    return until(seen, 90, project.said.read_text)


def in_use(
    run: subprocess.Popen[bytes], project: Project, *, after: psutil.Process | None = None
) -> psutil.Process:
    """Wait until a server is asked by a job other than ``after``; return that job."""

    def seen() -> psutil.Process | None:
        found = job(run, "probe")
        if found is None or found == after:
            return None
        for home, state in Home.all_live():
            try:
                with home.used(shared=False, wait=False):
                    pass
            except BlockingIOError:
                ready = "fired up" in Path(state.log).read_text(errors="replace")
                return found if ready and state.ending is None else None
        return None

    return until(seen, 120, project.said.read_text)


PROBE = "results/experiments/it/probe.json"
SERVER = "results/experiments/it/server.json"


def test_killed_jobs_supervisors_and_servers(project: Project) -> None:
    """What says nothing about the experiment is tried again; a server's death is a result."""
    with project.running("--retries", "3", PROBE) as run:
        first = loading(run, project)
        boot = server().boot
        first.kill()  # the job: the next one takes the load over
        asking = in_use(run, project)
        assert server().boot == boot
        asking.kill()  # the next one finds the server running
        again = in_use(run, project, after=asking)
        assert server().boot == boot
        os.kill(server().supervisor, signal.SIGKILL)  # the next one starts another
        in_use(run, project, after=again)
        assert server().boot != boot
        os.kill(server().pid, signal.SIGKILL)  # the server itself
        assert project.ended(run) == 0
    assert project.read("server.json")["boot"] == boot
    probe = project.read("probe.json")
    assert (probe["status"], probe["reason"]["class"]) == ("failed", "killed")
    assert len(project.boots()) == 2


def interrupt(run: subprocess.Popen[bytes]) -> None:
    """Do what Ctrl-C does in a terminal."""
    os.killpg(run.pid, signal.SIGINT)


@pytest.mark.parametrize(
    ("how", "number"),
    [("Ctrl-C", signal.SIGINT), ("TERM", signal.SIGTERM), ("INT", signal.SIGINT)],
)
def test_a_run_is_ended_while_a_server_is_used(
    project: Project, how: str, number: signal.Signals
) -> None:
    with project.running(PROBE) as run:
        in_use(run, project)
        if how == "Ctrl-C":
            interrupt(run)
        else:
            run.send_signal(number)  # Snakemake alone: it waits for the job that runs
        assert project.ended(run) != 0
    assert project.read("server.json")["status"] == "ok"
    assert (project.folder / "probe.json").exists() == (how != "Ctrl-C")


def test_a_run_is_killed_while_a_server_is_used(project: Project) -> None:
    with project.running(PROBE) as run:
        in_use(run, project)
        run.kill()
        project.ended(run)
    assert not (project.folder / "probe.json").exists()
    locked = project.snakemake(PROBE, "--allowed-rules", "launch", "probe")
    assert locked.returncode != 0
    assert "--unlock" in locked.stderr
    assert project.snakemake("--unlock", PROBE).returncode == 0


@pytest.mark.parametrize("how", ["Ctrl-C twice", "KILL"])
def test_a_run_is_ended_while_a_server_loads(project: Project, how: str) -> None:
    with project.running(PROBE) as run:
        loading(run, project)
        if how == "KILL":
            run.kill()
        else:
            interrupt(run)
            with contextlib.suppress(ProcessLookupError):
                interrupt(run)
        assert project.ended(run) != 0
    assert not (project.folder / "server.json").exists()
    if how == "KILL":
        assert project.snakemake("--unlock", PROBE).returncode == 0
    again = project.snakemake("--dry-run", PROBE, "--allowed-rules", "launch", "probe")
    assert again.returncode == 0, again.stderr  # nothing half-written is in the way


def test_a_server_is_killed_while_it_loads(project: Project) -> None:
    with project.running(PROBE) as run:
        loading(run, project)
        os.kill(server().pid, signal.SIGKILL)
        assert project.ended(run) == 0
    document = project.read("server.json")
    assert (document["status"], document["reason"]["class"]) == ("failed", "killed")
    assert project.read("probe.json")["status"] == "skipped"


def test_a_load_that_takes_too_long(project: Project) -> None:
    with project.running("results/experiments/slow/server.json") as run:
        assert project.ended(run) == 0
    document = artifact.read(project.folder.with_name("slow") / "server.json")
    assert document["status"] == "failed"
    assert document["reason"]["class"] in ("timeout-with-progress", "timeout-without-progress")


LOG_ROOM = 16_000


def test_no_room_for_the_log(project: Project) -> None:
    """A server whose output can't be kept is served by all the same."""

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LOG_ROOM, LOG_ROOM))

    with project.running(SERVER, preexec_fn=little_room) as run:
        assert project.ended(run) == 0
    assert project.read("server.json")["status"] == "ok"
    log = project.folder / "server.log"
    assert log.stat().st_size == LOG_ROOM
    assert "fired up" not in log.read_text(errors="replace")


def lives(*projects: Project) -> list[tuple[str, str]]:
    """Return when each server was started and had ended, by the notes in the logs."""
    found = []
    for each in projects:
        for log in each.folder.glob("server*.log"):
            notes = re.findall(r"^\[bringup (\S+ \S+)\] (boot|ended)", log.read_text(), re.M)
            times = {what: when for when, what in notes}
            found.append((times["boot"], times["ended"]))
    return sorted(found)


def test_two_workflows_on_one_machine(
    project: Project, real_engine: artifact.Document, tmp_path: Path
) -> None:
    """In one folder Snakemake refuses the second; in two, their servers take turns."""
    other = Project(tmp_path, real_engine, requests=8)
    with project.running(SERVER) as run:
        loading(run, project)
        os.kill(server().pid, signal.SIGSTOP)  # it loads until all have come
        with other.running(SERVER) as second:
            refused = project.snakemake(SERVER, "--allowed-rules", "launch")
            assert refused.returncode != 0
            assert "cannot be locked" in refused.stderr
            until(lambda: job(second, "launch"), 60)
            os.kill(server().pid, signal.SIGCONT)
            assert project.ended(run) == 0
            assert other.ended(second) == 0
    assert [each.read("server.json")["status"] for each in (project, other)] == ["ok", "ok"]
    first, then = lives(project, other)[-2:]
    assert first[1] <= then[0]
