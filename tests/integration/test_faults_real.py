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
from bringup.resident.supervisor import TICK_S
from project import Copy

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

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
            weights = {"snapshot": "resources/arithmetic-moe/bf16", "draft": None}
            artifact.write(folder / "weights.json", artifact.document("weights/1", **weights))
        self.folder = home / "results/experiments/it"

    def forget(self) -> None:
        """Remove what earlier runs have made."""
        for folder in (self.folder, self.folder.with_name("slow")):
            for made in [*folder.glob("serve*"), *folder.glob("probe.json")]:
                made.unlink()

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start Snakemake as a terminal does: with a process group of its own."""
        command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
        with self.said.open("wb") as sink:
            process = subprocess.Popen(
                [*command, *ONLY],
                cwd=self.home,
                env={
                    **os.environ,
                    "PYTHONPATH": str(self.home / "src"),
                    "CUDA_VISIBLE_DEVICES": "",
                },
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                preexec_fn=heeds_interrupts,
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

    def ended(self, process: subprocess.Popen[bytes], within_s: float = 240) -> int:
        """Return a run's exit code once it has ended and nothing of it is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
        assert process.returncode is not None, self.said.read_text()
        until(lambda: not left(self.home), GONE_S, lambda: left(self.home))
        return process.returncode

    def jobs_left(self) -> list[str]:
        """Return what still runs of its runs, but for servers and their supervisors."""
        return [each for each in left(self.home) if f"{self.home}/.snakemake/scripts" in each]

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
    """The project, with a folder for running processes of its own.

    It lies elsewhere: what another project runs there is not left of this one.
    """
    home = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_RUN", str(tmp_path_factory.mktemp("run")))
        yield Project(home, real_engine)
        for each, _ in Home.all_live():
            each.stop()


@pytest.fixture(autouse=True)
def afresh(project: Project) -> None:
    project.forget()


def until(
    happens: Callable[[], Any],
    within_s: float,
    told: Callable[[], Any],
    *,
    unless: Callable[[], Any] = lambda: False,
) -> Any:
    """Return what ``happens`` returns once that is true; ``told`` says what happened instead."""
    deadline = time.monotonic() + within_s
    while not (seen := happens()):
        assert time.monotonic() < deadline and not unless(), told()
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


def servers() -> Iterator[tuple[Home, State]]:
    """Yield the servers that run or are ending; what else lives there is an engine's process."""
    return ((home, state) for home, state in Home.all_live() if "port" in state.notes)


def server() -> State | None:
    """Return the server that runs."""
    return next((state for _, state in servers() if state.ending is None), None)


def ready() -> str:
    """Return what jobs noted of the servers that became ready."""
    return "".join(note.read_text() for note in run_folder().glob("*/ready.json"))


def used() -> bool:
    """Tell whether a job uses a server, or waits for it to load."""
    for home, _ in servers():
        try:
            with home.used(shared=False, wait=False):
                pass
        except BlockingIOError:
            return True
    return False


def loading(
    run: subprocess.Popen[bytes], project: Project, *, after: psutil.Process | None = None
) -> psutil.Process:
    """Wait until a server loads; return the job, other than ``after``, that waits for it."""

    def seen() -> psutil.Process | None:
        log = project.folder / "server.log"
        begun = log.exists() and "server_args=" in log.read_text(errors="replace")
        found = job(run, "launch")
        return found if begun and found != after and server() and used() else None

    return until(seen, 180, project.said.read_text, unless=lambda: run.poll() is not None)


def in_use(
    run: subprocess.Popen[bytes],
    project: Project,
    *,
    after: psutil.Process | None = None,
    not_on: str | None = None,
) -> psutil.Process:
    """Wait until a server is asked; return the job that asks.

    It is another job than ``after``, and another server than that of the boot ``not_on``.
    """

    def seen() -> psutil.Process | None:
        found, state = job(run, "probe"), server()
        if state is None or state.boot == not_on or found == after or not used():
            return None
        return found if state.boot in ready() else None

    return until(seen, 240, project.said.read_text, unless=lambda: run.poll() is not None)


PROBE = "results/experiments/it/probe.json"
SERVER = "results/experiments/it/server.json"
ONLY = ("--allowed-rules", "launch", "probe")
LOG_ROOM = 100
"""Bytes that a server's log may still grow by, once it loads."""


def heeds_interrupts() -> None:
    """Undo what a shell does to programs in its background: they ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def little_room(log: Path) -> int:
    """Let the supervisor write no longer ``log`` than, nearly, it is; return the bytes allowed.

    The supervisor alone: Python takes a short write of byte code for a whole one, and all that the
    server imports for the first time would be broken for good.
    """
    room = log.stat().st_size + LOG_ROOM
    resource.prlimit(server().supervisor, resource.RLIMIT_FSIZE, (room, room))
    return room


def test_killed_jobs_supervisors_and_servers_and_no_room_for_logs(project: Project) -> None:
    """What says nothing about the experiment is tried again; a server's death is a result.

    The log of the one that is used has no room for what a server prints until it is ready.
    """
    with project.running("--retries", "3", PROBE) as run:
        first = loading(run, project)
        boot = server().boot
        first.kill()
        second = loading(run, project, after=first)  # takes the load over
        assert server().boot == boot
        os.kill(server().supervisor, signal.SIGKILL)
        loading(run, project, after=second)  # another load
        room = little_room(project.folder / "server.log")
        boot = server().boot
        asking = in_use(run, project)
        asking.kill()
        in_use(run, project, after=asking)  # finds the server as it was
        assert server().boot == boot
        os.kill(server().supervisor, signal.SIGKILL)
        in_use(run, project, not_on=boot)  # the same job, or the next one, starts another
        os.kill(server().pid, signal.SIGKILL)
        assert project.ended(run) == 0
    document, probe = project.read("server.json"), project.read("probe.json")
    assert (document["status"], document["boot"]) == ("ok", boot)
    assert (probe["status"], probe["reason"]["class"]) == ("failed", "killed")
    assert len(project.boots()) == 3
    assert probe["boot"] == project.boots()[-1]
    log = project.folder / "server.1.log"
    assert log.stat().st_size == room
    assert "fired up" not in log.read_text(errors="replace")


def interrupt(run: subprocess.Popen[bytes]) -> None:
    """Do what Ctrl-C does in a terminal."""
    os.killpg(run.pid, signal.SIGINT)


@pytest.fixture
def another_owner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for another workflow which wants the same server."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_runs_are_ended_while_they_use_a_server_that_another_workflow_wants_too(
    project: Project,
    real_engine: artifact.Document,
    another_owner: subprocess.Popen[bytes],
    tmp_path: Path,
) -> None:
    """The server stays for the other one, and ends when the last that wants it is killed.

    Meanwhile a run in the same folder is refused, and one in another folder, which wants another
    server on the same device, waits for its turn.
    """
    boot = ""
    for how in ("Ctrl-C", "TERM", "INT"):
        with project.running(PROBE) as run:
            in_use(run, project)
            boot = boot or server().boot
            ((home, _),) = servers()
            (home.folder / "owners" / str(another_owner.pid)).touch()
            time.sleep(3 * TICK_S)  # in which its supervisor sees the owner
            if how == "Ctrl-C":
                interrupt(run)
            else:  # to Snakemake alone, which waits for the job that runs
                run.send_signal(signal.SIGTERM if how == "TERM" else signal.SIGINT)
            assert run.wait(120) != 0, how
            until(lambda: not project.jobs_left(), GONE_S, project.jobs_left)
        assert (project.folder / "probe.json").exists() == (how != "Ctrl-C")
        assert server().boot == boot
        (project.folder / "probe.json").unlink(missing_ok=True)

    other = Project(tmp_path, real_engine, requests=8)
    with project.running(PROBE) as run:
        in_use(run, project)
        os.kill(server().pid, signal.SIGSTOP)  # no answer comes until all is arranged
        assert server().boot == boot
        refused = project.snakemake(PROBE, *ONLY)
        assert refused.returncode != 0
        assert "cannot be locked" in refused.stderr
        with other.running(SERVER) as second:
            until(lambda: job(second, "launch"), 60, other.said.read_text)
            another_owner.kill()
            another_owner.wait()
            run.kill()
            project.ended(run)
            assert other.ended(second) == 0
    assert not (project.folder / "probe.json").exists()
    assert other.read("server.json")["status"] == "ok"
    assert end_of(project) <= start_of(other)
    unlocked_and_clean(project)


def end_of(project: Project) -> str:
    """Return when its newest server had ended, by the note in its log."""
    log = (project.folder / "server.log").read_text()
    return re.findall(r"^\[bringup (\S+ \S+)\] ended", log, re.MULTILINE)[-1]


def start_of(project: Project) -> str:
    """Return when its newest server was started."""
    log = (project.folder / "server.log").read_text()
    return re.findall(r"^\[bringup (\S+ \S+)\] boot", log, re.MULTILINE)[0]


def unlocked_and_clean(project: Project) -> None:
    """Unlock the folder of a killed run; nothing else may be in the next run's way."""
    assert project.snakemake("--unlock", PROBE).returncode == 0
    again = project.snakemake("--dry-run", PROBE, *ONLY)
    assert again.returncode == 0, again.stderr


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
        unlocked_and_clean(project)


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
