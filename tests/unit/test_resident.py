"""A process outlives the job that started it, but never its workflow."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bringup import resident
from bringup.resident import Home, Spec, State
from bringup.resident.log import CappedLog, rotate
from bringup.resident.supervisor import TICK_S

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run folder of the test's own, in which nothing may be left."""
    monkeypatch.setenv("BRINGUP_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("BRINGUP_OWNER", str(os.getpid()))
    yield tmp_path / "run"
    for home, _ in Home.all_live():
        home.stop()


@pytest.fixture
def workflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the workflow's main process."""
    process = subprocess.Popen(["sleep", "600"])
    monkeypatch.setenv("BRINGUP_OWNER", str(process.pid))
    yield process
    process.kill()
    process.wait()


def python(code: str, **options: object) -> Spec:
    return Spec("test", (sys.executable, "-c", code), **options)  # type: ignore[arg-type]


def until(happens: Callable[[], bool], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not happens():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def run_once(spec: Spec, tmp_path: Path, idle_s: float = 60) -> State:
    """Use the process as a job would, and leave it."""
    with resident.running(spec, log=tmp_path / "it.log", idle_s=idle_s) as state:
        return state


def test_the_next_job_finds_the_same_process(tmp_path: Path) -> None:
    first = run_once(python(SLEEPER), tmp_path)
    again = run_once(python(SLEEPER), tmp_path)
    assert again == first
    assert not gone(first.pid)


def test_another_spec_is_another_process(tmp_path: Path) -> None:
    one = run_once(python(SLEEPER), tmp_path)
    two = run_once(python(SLEEPER, env={"A": "1"}), tmp_path)
    assert one.pid != two.pid


def test_jobs_that_start_it_at_once_share_one(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from bringup import resident;"
        f"spec = resident.Spec('test', (sys.executable, '-c', {SLEEPER!r}));"
        f"log = Path({str(tmp_path / 'it.log')!r});"
        "context = resident.running(spec, log=log, idle_s=60);"
        "print(context.__enter__().boot)"
    )
    jobs = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert len({job.communicate()[0] for job in jobs}) == 1


def test_it_ends_when_unused_but_not_while_used(tmp_path: Path) -> None:
    with resident.running(python(SLEEPER), log=tmp_path / "it.log", idle_s=0.3) as state:
        time.sleep(0.8)  # longer than it may be idle
        assert not gone(state.pid)
    until(lambda: gone(state.pid))
    until(lambda: gone(state.supervisor))
    assert Home.of(python(SLEEPER)).state().ending == "idle"


def test_it_ends_with_its_workflow(tmp_path: Path, workflow: subprocess.Popen[bytes]) -> None:
    with resident.running(python(SLEEPER), log=tmp_path / "it.log", idle_s=60) as state:
        workflow.kill()
        workflow.wait()
        until(lambda: gone(state.pid), 2)
    until(lambda: gone(state.supervisor), 2)
    assert Home.of(python(SLEEPER)).state().ending == "owner"


def test_it_lives_as_long_as_the_last_workflow_that_uses_it(
    tmp_path: Path, workflow: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = run_once(python(SLEEPER), tmp_path)
    other = subprocess.Popen(["sleep", "600"])
    monkeypatch.setenv("BRINGUP_OWNER", str(other.pid))
    assert run_once(python(SLEEPER), tmp_path).pid == state.pid
    workflow.kill()
    workflow.wait()
    time.sleep(3 * TICK_S)
    assert not gone(state.pid)
    other.kill()
    other.wait()
    until(lambda: gone(state.pid))


FAMILY = (
    "import subprocess, time;"
    "one = subprocess.Popen(['sleep', '600']);"
    "other = subprocess.Popen(['sleep', '600'], start_new_session=True);"
    "print(one.pid, other.pid, flush=True); time.sleep(600)"
)


def family(state: State) -> list[int]:
    """Return the ids of a `FAMILY`: the process, its child, and its child in another session."""
    log = Path(state.log)
    until(lambda: len(log.read_text().splitlines()) == 2)
    return [state.pid, *(int(pid) for pid in log.read_text().splitlines()[1].split())]


def test_a_killed_supervisor_takes_it_along(tmp_path: Path) -> None:
    state = run_once(python(FAMILY), tmp_path)
    pids = family(state)
    os.kill(state.supervisor, signal.SIGKILL)
    Home.of(python(FAMILY)).wait_for_end()
    assert all(map(gone, pids))
    assert run_once(python(FAMILY), tmp_path).pid != state.pid


def test_a_killed_supervisors_parent_takes_it_along(tmp_path: Path) -> None:
    state = run_once(python(FAMILY, grace_s=0.5), tmp_path)
    pids = family(state)
    psutil.Process(state.supervisor).parent().kill()  # type: ignore[union-attr]
    Home.of(python(FAMILY, grace_s=0.5)).wait_for_end()
    assert all(map(gone, pids))


def test_stop_returns_when_all_of_it_is_gone(tmp_path: Path) -> None:
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FAMILY}"
    spec = python(stubborn, grace_s=0.3)
    state = run_once(spec, tmp_path)
    pids = family(state)
    Home.of(spec).stop()
    assert all(map(gone, pids))
    assert Home.of(spec).state().exit_code == -signal.SIGKILL


def test_a_launcher_that_lingers_without_its_workers_is_not_waited_for(tmp_path: Path) -> None:
    lingering = (
        "import multiprocessing, signal, time;"
        "signal.signal(signal.SIGTERM, lambda *_: None);"
        "multiprocessing.get_context('spawn').Lock();"  # starts the resource tracker
        "import subprocess; worker = subprocess.Popen(['sleep', '600']);"
        "print(worker.pid, flush=True); time.sleep(600)"
    )
    spec = python(lingering, grace_s=600)
    log = tmp_path / "it.log"
    state = run_once(spec, tmp_path)
    until(lambda: len(log.read_text().splitlines()) == 2)
    began = time.monotonic()
    Home.of(spec).stop()
    assert time.monotonic() - began < 5
    assert gone(state.pid)


def test_its_own_end_is_told(tmp_path: Path) -> None:
    spec = python("print('out of luck'); raise SystemExit(3)")
    run_once(spec, tmp_path)
    Home.of(spec).wait_for_end()
    state = Home.of(spec).state()
    assert (state.ending, state.exit_code) == ("exited", 3)
    lines = (tmp_path / "it.log").read_text().splitlines()
    assert lines[1] == "out of luck"
    assert lines[2].endswith("ended (exited), exit code 3")


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file or directory: '/nowhere/python'"):
        run_once(Spec("test", ("/nowhere/python",)), tmp_path)
    assert not list(Home.all_live())


def test_older_logs_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "it.log"
    for number in range(7):
        rotate(log)
        log.write_text(f"life {number}")
    newest_first = [log, *(tmp_path / f"it.{age}.log" for age in range(1, 5))]
    assert [each.read_text() for each in newest_first] == [
        f"life {number}" for number in (6, 5, 4, 3, 2)
    ]
    assert len(list(tmp_path.iterdir())) == 5


def test_a_new_life_keeps_the_old_ones_log(tmp_path: Path) -> None:
    for _ in range(2):
        run_once(python("pass"), tmp_path)
        Home.of(python("pass")).wait_for_end()
    assert (tmp_path / "it.log").exists()
    assert (tmp_path / "it.1.log").exists()


def test_environment_and_placeholders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNWANTED", "1")
    code = "import os, sys; print(os.environ.get('UNWANTED'), os.environ['A'], sys.argv[1:])"
    spec = Spec(
        "test",
        (sys.executable, "-c", code, "{home}/socket", '{"json": "{port}"}'),
        env={"UNWANTED": None, "A": "b"},
    )
    resident.start(spec, log=tmp_path / "it.log", idle_s=60, fill={"port": "123"})
    Home.of(spec).wait_for_end()
    socket = Home.of(spec).folder / "socket"
    shown = (tmp_path / "it.log").read_text().splitlines()[1]
    assert shown == f"""None b ['{socket}', '{{"json": "123"}}']"""


def test_secrets_are_written_nowhere(tmp_path: Path, run_folder: Path) -> None:
    code = "import os, sys; print(sys.argv, os.environ['HF_TOKEN'])"
    spec = Spec(
        "test",
        (sys.executable, "-c", code, "--api-key", "open-sesame", "--admin-api-key=very-hidden"),
        env={"HF_TOKEN": "whisper-it"},
    )
    run_once(spec, tmp_path)
    Home.of(spec).wait_for_end()
    files = [path for path in [*run_folder.rglob("*"), tmp_path / "it.log"] if path.is_file()]
    written = "\n".join(path.read_text() for path in files)
    assert "'--api-key', '[hidden]', '--admin-api-key=[hidden]'] [hidden]" in written
    for secret in ("open-sesame", "very-hidden", "whisper-it"):
        assert secret not in written


def test_a_log_names_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    code = r"import sys; sys.stdout.buffer.write(b'\xff /home/alice/x ' + sys.argv[1].encode())"
    spec = Spec("test", (sys.executable, "-c", code, "--at=/home/alice/y"))
    run_once(spec, tmp_path)
    Home.of(spec).wait_for_end()
    log = (tmp_path / "it.log").read_bytes()
    assert b"\xff {home}/x --at={home}/y" in log
    assert b"alice" not in log


def test_a_flooded_log_keeps_head_and_tail(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "it.log", limit=100_000, keep=10_000)
    for number in range(100_000):
        log.write(b"line %d\n" % number)
    text = (tmp_path / "it.log").read_text()
    assert len(text) <= 100_000
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("line 99998\nline 99999\n")
    assert text.count("bytes were dropped here") >= 1


@contextlib.contextmanager
def a_disk_with_room_for(size: int) -> Iterator[None]:
    """Let this process, and what it starts, write no file beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_stops_the_log_and_not_the_process(tmp_path: Path) -> None:
    done = tmp_path / "done"
    code = (
        "import pathlib, time; print(2 * 10**6 * 'x', flush=True);"
        f"pathlib.Path({str(done)!r}).touch(); time.sleep(600)"
    )
    with a_disk_with_room_for(100_000):
        state = run_once(python(code), tmp_path)
    until(done.exists)  # what it prints is read, though it can't be kept
    assert (tmp_path / "it.log").stat().st_size == 100_000
    assert not gone(state.pid)
    Home.of(python(code)).stop()
    assert gone(state.pid)
    assert Home.of(python(code)).state().ending == "stopped"


def test_a_log_whose_middle_can_not_be_dropped_goes_on(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "it.log", limit=100_000, keep=40_000)
    with a_disk_with_room_for(60_000):  # the shortened copy needs 80,000
        for number in range(5_000):
            log.write(b"line %d\n" % number)
    log.write(b"room again\n")
    for number in range(20_000):
        log.write(b"later %d\n" % number)
    text = (tmp_path / "it.log").read_text()
    assert text.startswith("line 0\n")
    assert text.endswith("later 19999\n")
    assert len(text) <= 100_000
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["it.log"]


def test_the_folder_is_private(tmp_path: Path, run_folder: Path) -> None:
    run_once(python(SLEEPER), tmp_path)
    assert run_folder.stat().st_mode & 0o777 == 0o700
