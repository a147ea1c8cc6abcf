"""Jobs share a server, one at a time; its failures are told apart from other people's doing."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripted_server import Answer, ScriptedServer

from bringup.endpoint import Endpoint, NoReplyError
from bringup.resident import Home
from bringup.serving import (
    Boot,
    Busy,
    Interrupted,
    ServerFailed,
    ServerSpec,
    devices,
    identity,
    lease,
    leasing,
)
from bringup.serving.devices import Gpu
from bringup.serving.startup import Limits, Patience

FAKE = Path(__file__).with_name("fake_server.py")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run and lock folders of the test's own, no GPUs, and nothing left at the end."""
    monkeypatch.setenv("BRINGUP_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("BRINGUP_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("BRINGUP_OWNER", str(os.getpid()))
    monkeypatch.setattr(devices, "look", list)
    monkeypatch.setattr(leasing, "DYING_S", 0.3)
    yield
    for home, _ in Home.all_live():
        home.stop()
    assert not [
        process
        for process in psutil.process_iter()
        if str(tmp_path) in " ".join(cmdline(process)) and process.pid != os.getpid()
    ]


def cmdline(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def spec_of(
    tmp_path: Path, *flags: str, name: str = "it", gpus: int = 0, boot: int = 1, **plan: Any
) -> ServerSpec:
    """Return the spec of an experiment that is served by the fake server with some flags."""
    document = {
        "experiment": name,
        "python": sys.executable,
        "argv": ["-IS", str(FAKE), "--model-path", "{model}", "--port", "{port}", *flags],
        "env": {},
        "pythonpath": [],
        "gpus": gpus,
        "startup_max_s": 60,
        **plan,
    }
    weights = {"snapshot": str(tmp_path / "model"), "draft": str(tmp_path / "draft")}
    return ServerSpec.of(document, weights, boot)


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., ServerSpec]:
    """Make specs as `spec_of` does, with the test's own folder."""
    return functools.partial(spec_of, tmp_path)


def test_the_folders_of_model_and_draft_are_filled_in(experiment, tmp_path):
    argv = experiment("--speculative-draft-model-path", "{draft}").process.argv
    assert argv[-1] == str(tmp_path / "draft")
    assert argv[argv.index("--model-path") + 1] == str(tmp_path / "model")


def use_once(spec: ServerSpec, tmp_path: Path, **options: Any) -> Boot:
    """Use the server as a job would, and leave it."""
    with lease(spec, log_dir=tmp_path, **options) as boot:
        return boot


def state(spec: ServerSpec) -> Any:
    return Home.of(spec.process).state()


def gone(pid: int) -> bool:
    """Tell whether a process has ended, reaped or not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def until(happens: Callable[[], bool], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not happens():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


# One load for all jobs, one job at a time.


def test_jobs_share_one_load(experiment: Any, tmp_path: Path) -> None:
    first = use_once(experiment(), tmp_path)
    again = use_once(experiment(), tmp_path)
    assert again == first
    assert first.gpus == ()
    assert first.model_info == {"model_path": str(tmp_path / "model")}
    assert first.log == tmp_path / "server.log"
    assert 0 < first.load_s < 30


def test_each_boot_of_a_sweep_is_a_server_of_its_own(experiment: Any, tmp_path: Path) -> None:
    again = experiment(boot=2)
    first, second = use_once(experiment(), tmp_path), use_once(again, tmp_path / "boot2")
    assert first.id != second.id
    assert use_once(again, tmp_path / "boot2").id == second.id  # its own points share it


def test_two_jobs_never_use_it_at_once(experiment: Any, tmp_path: Path) -> None:
    with lease(experiment(), log_dir=tmp_path), pytest.raises(Busy, match="this server"):
        use_once(experiment(), tmp_path, wait_s=0.3)
    use_once(experiment(), tmp_path, wait_s=0.3)


def test_two_experiments_never_use_one_device_at_once(experiment: Any, tmp_path: Path) -> None:
    with lease(experiment(), log_dir=tmp_path), pytest.raises(Busy, match="the CPU"):
        use_once(experiment(name="other"), tmp_path, wait_s=0.3)


def test_an_idle_server_makes_room(experiment: Any, tmp_path: Path) -> None:
    use_once(experiment(name="one"), tmp_path)
    use_once(experiment(name="two"), tmp_path)
    assert [home.folder.name[:3] for home, _ in Home.all_live()] == ["two"]
    assert state(experiment(name="one")).ending == "stopped"


def test_an_idle_server_ends(experiment: Any, tmp_path: Path) -> None:
    use_once(experiment(), tmp_path, idle_s=0.2)
    until(lambda: not list(Home.all_live()))
    assert state(experiment()).ending == "idle"


def test_the_next_life_keeps_the_last_ones_log(experiment: Any, tmp_path: Path) -> None:
    for _ in range(2):
        boot = use_once(experiment(), tmp_path)
        Home.of(experiment().process).stop()
    assert boot.id in (tmp_path / "server.log").read_text()
    assert boot.id not in (tmp_path / "server.1.log").read_text()


def test_environment(experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", "/of/the/job")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    spec = experiment(env={"SGLANG_X": "1"}, pythonpath=["overlay", "/stand/in"])
    with lease(spec, log_dir=tmp_path) as boot:
        environment = boot.endpoint.get("/environment", timeout_s=5).json
    assert environment["SGLANG_X"] == "1"
    assert environment["PYTHONPATH"] == f"{Path('overlay').absolute()}:/stand/in"
    assert not {"OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"} & set(environment)


def test_an_api_key_is_used_and_hidden(experiment: Any, tmp_path: Path) -> None:
    boot = use_once(experiment("--api-key", "open-sesame"), tmp_path)
    assert boot.endpoint.api_key == "open-sesame"
    assert "open-sesame" not in " ".join(boot.argv)
    assert "api_key='[hidden]'" in boot.log.read_text()
    assert "open-sesame" not in boot.log.read_text()


def test_who_waits_is_told_how_it_stands(
    experiment: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("bringup.serving.startup.REPORT_S", 0.2)
    monkeypatch.setattr(leasing, "REPORT_S", 0.2)
    with lease(experiment("--load-s", "1", "--chatter"), log_dir=tmp_path):
        assert re.search(r"it: loading for \d+ s: Loading shards: 0\.\d s", capsys.readouterr().err)
        with pytest.raises(Busy):
            use_once(experiment(name="other"), tmp_path, wait_s=0.5)
    assert "other: waiting for the CPU, 0 s so far" in capsys.readouterr().err


# Failures that are facts about the experiment.


def test_a_crash_while_loading(experiment: Any, tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="exit code 3") as caught:
        use_once(experiment("--crash", "3"), tmp_path)
    failure = caught.value
    assert (failure.stage, failure.cause, failure.exit_code) == ("start", "exited", 3)
    assert "RuntimeError: out of luck" in failure.log.read_text()
    assert failure.boot in failure.log.read_text()


def limit(monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
    """Wait for a loading server as ``limits`` say."""
    monkeypatch.setattr(leasing, "Limits", lambda _: Limits(**limits))


def test_a_hang_while_loading(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, max_s=60, first_s=0.2, silence_s=0.5)
    with pytest.raises(ServerFailed, match="its log last grew") as caught:
        use_once(experiment("--load-s", "60"), tmp_path)
    assert (caught.value.cause, caught.value.exit_code) == ("silent", None)
    assert caught.value.seconds < 30
    assert not list(Home.all_live())


def test_a_load_that_gets_on_is_waited_for(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, max_s=60, first_s=0.2, silence_s=2)
    assert use_once(experiment("--load-s", "2.5", "--chatter"), tmp_path).load_s > 2.5


def test_even_a_load_that_gets_on_has_a_limit(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, max_s=1.5)
    with pytest.raises(ServerFailed, match="no answer 2 s after its start") as caught:
        use_once(experiment("--load-s", "60", "--chatter"), tmp_path)
    assert caught.value.cause == "too-slow"


class Loading:
    """A server that has been loading for so long, and its log; stands in for `Server`."""

    def __init__(self, log: Path) -> None:
        self.seconds = 0.0
        self.log = log
        log.write_text("starting\n")


def test_ten_silent_minutes_do_no_harm_whenever_they_come(tmp_path: Path) -> None:
    """A first start compiles kernels for ten minutes and more, saying nothing."""
    server: Any = Loading(tmp_path / "server.log")
    patience = Patience(server, Limits(max_s=7200))
    for minute in range(1, 101):
        server.seconds = 60.0 * minute
        if minute % 11 == 0:  # ten minutes of silence between two lines, for 100 minutes
            with server.log.open("a") as log:
                log.write("another kernel\n")
        assert patience.ended() is None, minute
    server.seconds = 7201.0
    assert patience.ended() == "silent"


def test_a_load_that_stands_still_for_long_is_given_up_before_its_hard_limit(
    tmp_path: Path,
) -> None:
    server: Any = Loading(tmp_path / "server.log")
    patience = Patience(server, Limits(max_s=7200))
    waited = []
    for minute in range(1, 119):
        server.seconds = 60.0 * minute
        if patience.ended() == "silent":
            waited.append(minute)
    assert waited[0] == 31


# Logs of any size.

FLOOD_MB = 300


def lines_around(log: Path) -> tuple[list[str], list[str]]:
    """Return the first and the last lines of a log."""
    lines = log.read_text().splitlines()
    return lines[:4], lines[-3:]


def peak_mib(pid: int) -> int:
    """Return the most memory that a process ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10  # type: ignore[index]


def test_a_log_of_hundreds_of_megabytes_does_no_harm(experiment: Any, tmp_path: Path) -> None:
    """While it starts and while it serves: head and tail are kept, in little memory."""
    spec = experiment("--flood-mb", str(FLOOD_MB))
    with lease(spec, log_dir=tmp_path) as boot:
        head, tail = lines_around(boot.log)
        assert boot.id in head[0]
        assert head[3].endswith("line 0")
        assert tail[-1] == "The server is fired up and ready to roll!"
        assert tail[-2].endswith(" lines of flood")
        assert boot.log.stat().st_size <= 64 << 20
        assert boot.endpoint.get(f"/flood/{FLOOD_MB}", timeout_s=60).status == 200
    assert peak_mib(state(spec).supervisor) < 200
    head, tail = lines_around(boot.log)
    assert boot.id in head[0]
    assert tail[-1].endswith(" lines of flood")
    assert boot.log.stat().st_size <= 64 << 20
    assert "bytes were dropped here" in boot.log.read_text()
    assert use_once(spec, tmp_path).id == boot.id


def test_a_server_that_is_well_but_cannot_answer(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bringup.serving.startup.DYING_S", 0.2)
    monkeypatch.setattr("bringup.serving.startup.ATTEMPTS", 1)
    with pytest.raises(ServerFailed, match="no kernel image") as caught:
        use_once(experiment("--refuse"), tmp_path)
    assert (caught.value.stage, caught.value.cause) == ("start", "bad-answer")


def test_a_server_of_another_model(experiment: Any, tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="model_path is '/other'") as caught:
        use_once(experiment("--claim", "/other"), tmp_path)
    assert caught.value.cause == "not-as-planned"


def test_death_in_use_counts_whatever_it_leads_to(experiment: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match="exit code 7") as caught,
        lease(experiment(), log_dir=tmp_path) as boot,
    ):
        with contextlib.suppress(NoReplyError):
            boot.endpoint.get("/die", timeout_s=5)
        raise ZeroDivisionError
    assert (caught.value.stage, caught.value.boot) == ("use", boot.id)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "fatal: told to die" in caught.value.log.read_text()


def test_death_in_use_counts_even_if_nobody_minds(experiment: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match="SIGKILL") as caught,
        lease(experiment(), log_dir=tmp_path),
    ):
        os.kill(state(experiment()).pid, signal.SIGKILL)
    assert caught.value.exit_code == -signal.SIGKILL


def test_a_hang_in_use(experiment: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match="no longer answers") as caught,
        lease(experiment(), log_dir=tmp_path) as boot,
    ):
        boot.endpoint.get("/hang", timeout_s=5)
    assert (caught.value.stage, caught.value.cause) == ("use", "no-answer")
    assert not list(Home.all_live())


@pytest.mark.parametrize(
    ("statuses", "works", "asked"),
    [
        ({"/generate": 200, "/health": 503}, True, ["/generate"]),
        ({"/generate": 400, "/health": 200}, True, ["/generate", "/health"]),
        ({"/generate": 503, "/health": 503}, False, ["/generate", "/health"]),
    ],
)
def test_a_token_says_that_a_server_works_and_else_its_own_word(
    statuses: dict[str, int], works: bool, asked: list[str]
) -> None:
    with ScriptedServer(lambda path, _: Answer({}, statuses[path])) as server:
        assert identity.works(Endpoint(server.url)) is works
        assert [path for path, _ in server.requests] == asked


def test_a_jobs_own_error_is_its_own(experiment: Any, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lease(experiment(), log_dir=tmp_path) as boot:
        raise ZeroDivisionError
    assert use_once(experiment(), tmp_path).id == boot.id


# What is not the experiment's doing.


def test_the_workflow_ends(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = subprocess.Popen(["sleep", "600"])
    monkeypatch.setenv("BRINGUP_OWNER", str(workflow.pid))
    with (
        pytest.raises(Interrupted, match=r"from outside \(owner\)"),
        lease(experiment(), log_dir=tmp_path),
    ):
        workflow.kill()
        workflow.wait()
        until(lambda: not list(Home.all_live()), 3)


def test_a_killed_supervisor(experiment: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(Interrupted, match="its supervisor was killed"),
        lease(experiment(), log_dir=tmp_path) as boot,
    ):
        os.kill(state(experiment()).supervisor, signal.SIGKILL)
        until(lambda: gone(state(experiment()).pid))
    assert use_once(experiment(), tmp_path).id != boot.id


def job(tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    """Start a job in a process of its own, which says when it has its server and stays there."""
    code = f"""
import time
from pathlib import Path
from test_serving import spec_of
from bringup.serving import lease
with lease(spec_of(Path({str(tmp_path)!r}), *{flags!r}), log_dir=Path({str(tmp_path)!r})) as boot:
    print(boot.id, flush=True)
    time.sleep(600)
"""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=FAKE.parent
    )


def test_a_killed_job_leaves_the_server_to_the_next(experiment: Any, tmp_path: Path) -> None:
    killed = job(tmp_path)
    assert killed.stdout is not None
    boot = killed.stdout.readline().strip()
    killed.kill()
    killed.wait()
    assert use_once(experiment(), tmp_path).id == boot


def test_a_job_killed_while_loading_leaves_the_load_to_the_next(
    experiment: Any, tmp_path: Path
) -> None:
    spec = experiment("--load-s", "1")
    killed = job(tmp_path, "--load-s", "1")
    until(lambda: bool(list(Home.all_live())))
    loading = state(spec)
    killed.kill()
    killed.wait()
    boot = use_once(spec, tmp_path)
    assert boot.id == loading.boot
    assert boot.load_s >= 1


def test_a_hung_idle_server_is_started_again(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = use_once(experiment(), tmp_path)
    os.kill(state(experiment()).pid, signal.SIGSTOP)
    monkeypatch.setattr(identity, "ASK_S", 0.3)
    assert use_once(experiment(), tmp_path).id != boot.id


# Ports and strangers.


def test_ports_are_outside_the_clients_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = tmp_path / "range"
    monkeypatch.setattr(identity, "EPHEMERAL", limits)
    limits.write_text("32768\t60999\n")
    ports = [identity.free_port() for _ in range(50)]
    assert all(20000 <= port < 32768 or port > 60999 for port in ports)
    assert len(set(ports)) > 25
    limits.write_text("20001\t65535\n")
    assert identity.free_port() == 20000
    limits.write_text("1024\t65535\n")  # nothing is outside: any free port must do
    assert identity.free_port() >= 20000


def test_a_taken_port_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(identity, "FIRST_PORT", port)
        limits = tmp_path / "range"
        limits.write_text(f"{port + 2}\t65535\n")
        monkeypatch.setattr(identity, "EPHEMERAL", limits)
        assert identity.free_port() != port


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    """A stranger's listening socket, on which nobody has been accepted."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(0)
        yield listening


def test_a_port_that_is_taken_in_the_last_moment(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: socket.socket
) -> None:
    ports = iter([stranger.getsockname()[1], identity.free_port()])
    monkeypatch.setattr(identity, "free_port", lambda: next(ports))
    boot = use_once(experiment(), tmp_path)
    assert "address already in use" in (tmp_path / "server.1.log").read_text()
    assert boot.url.endswith(str(boot.server_info["port"]))


def test_ports_that_are_taken_again_and_again_are_no_fact_about_the_experiment(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: socket.socket
) -> None:
    monkeypatch.setattr(identity, "free_port", lambda: stranger.getsockname()[1])
    with pytest.raises(Busy, match="at each of 3 starts"):
        use_once(experiment(), tmp_path)
    with pytest.raises(BlockingIOError):  # and nobody talked to the stranger
        stranger.accept()


def test_a_stranger_on_the_port_is_never_asked(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranger: socket.socket
) -> None:
    """A stranger answers on the port of a server that is still loading: nobody talks to it."""
    limit(monkeypatch, max_s=1.5)
    monkeypatch.setattr(identity, "free_port", lambda: stranger.getsockname()[1])
    with pytest.raises(ServerFailed):
        use_once(experiment("--load-s", "60"), tmp_path)
    with pytest.raises(BlockingIOError):
        stranger.accept()


# GPUs.


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Gpu]:
    """A machine of four GPUs, empty at first; tests put processes on them."""
    gpus = {name: Gpu(name, 0.01, ()) for name in ("GPU-a", "GPU-b", "GPU-c", "GPU-d")}
    monkeypatch.setattr(devices, "look", lambda: list(gpus.values()))
    return gpus


def test_experiments_on_other_gpus_run_at_once(
    experiment: Any, tmp_path: Path, machine: dict[str, Gpu]
) -> None:
    one, two = experiment(name="one", gpus=2), experiment(name="two", gpus=2)
    with (
        lease(one, log_dir=tmp_path / "1") as first,
        lease(two, log_dir=tmp_path / "2") as second,
    ):
        assert first.gpus == ("GPU-a", "GPU-b")
        assert second.gpus == ("GPU-c", "GPU-d")
        visible = second.endpoint.get("/environment", timeout_s=5).json["CUDA_VISIBLE_DEVICES"]
        assert visible == "GPU-c,GPU-d"
        with pytest.raises(Busy, match="1 free GPUs"):
            use_once(experiment(name="three", gpus=1), tmp_path, wait_s=0.3)
    assert use_once(two, tmp_path / "2").id == second.id


def test_idle_servers_go_only_from_gpus_that_are_wanted(
    experiment: Any, tmp_path: Path, machine: dict[str, Gpu]
) -> None:
    one, two = experiment(name="one", gpus=1), experiment(name="two", gpus=3)
    first = use_once(one, tmp_path / "1")
    assert use_once(two, tmp_path / "2").gpus == ("GPU-b", "GPU-c", "GPU-d")
    assert use_once(one, tmp_path / "1").id == first.id
    four = use_once(experiment(name="all", gpus=4), tmp_path / "3")
    assert set(four.gpus) == set(machine)
    assert len(list(Home.all_live())) == 1


def test_a_strangers_gpu_is_not_free(
    experiment: Any, tmp_path: Path, machine: dict[str, Gpu]
) -> None:
    machine["GPU-a"] = Gpu("GPU-a", 0.02, (os.getppid(),))  # a process that isn't ours
    machine["GPU-b"] = Gpu("GPU-b", 0.5, ())  # memory in use by one that can't be seen
    assert use_once(experiment(gpus=2), tmp_path).gpus == ("GPU-c", "GPU-d")
    with pytest.raises(Busy, match="3 free GPUs"):
        use_once(experiment(name="more", gpus=3), tmp_path, wait_s=0.3)
    with pytest.raises(Busy, match="5 GPUs are needed, 4 are to be seen"):
        use_once(experiment(name="many", gpus=5), tmp_path)


def test_our_idle_servers_gpu_is_free_and_its_memory_waited_for(
    experiment: Any, tmp_path: Path, machine: dict[str, Gpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = experiment(name="one", gpus=4)
    use_once(one, tmp_path)
    server = state(one).pid
    for name in machine:
        machine[name] = Gpu(name, 0.9, (server,))
    looks = 0

    def look() -> list[Gpu]:
        nonlocal looks
        if gone(server):
            looks += 1
        freed = looks > 3
        return [Gpu(name, 0.01, ()) if freed else gpu for name, gpu in machine.items()]

    monkeypatch.setattr(devices, "look", look)
    use_once(experiment(name="two", gpus=1), tmp_path)
    assert looks > 3


def test_memory_that_does_not_come_back_is_a_strangers(
    experiment: Any, tmp_path: Path, machine: dict[str, Gpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "FREED_S", 0.3)
    one = experiment(name="one", gpus=1)
    use_once(one, tmp_path)
    machine["GPU-a"] = Gpu("GPU-a", 0.9, (state(one).pid,))
    with pytest.raises(Busy):
        use_once(experiment(name="two", gpus=4), tmp_path, wait_s=0.5)
    assert use_once(experiment(name="three", gpus=3), tmp_path).gpus == ("GPU-b", "GPU-c", "GPU-d")


def test_cuda_visible_devices_limits_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    gpus = [Gpu(f"GPU-{index}", 0.0, ()) for index in range(4)]
    for allowed, expected in [
        (None, [0, 1, 2, 3]),
        ("2,0", [0, 2]),
        ("GPU-1", [1]),
        ("", []),
    ]:
        assert [int(gpu.uuid[4:]) for gpu in devices.allowed(gpus, allowed)] == expected


def test_locks_are_for_all_users(tmp_path: Path) -> None:
    path = devices.slot("GPU-x")
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_can_take_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("BRINGUP_LOCKS", f"{folder}/locks")
        devices.slot("GPU-x")
        other = os.fork()
        if not other:
            os.setuid(65534)
            with contextlib.ExitStack() as held:
                os._exit(0 if devices.take_again(["GPU-x"], held) else 1)
        assert os.waitpid(other, 0)[1] == 0


def test_jobs_with_other_temporary_folders_share_the_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system gives each job a TMPDIR of its own."""
    monkeypatch.delenv("BRINGUP_LOCKS")
    monkeypatch.setattr(devices, "LOCKS", tmp_path / "everybodys")
    found = set()
    for name in ("one", "two"):
        monkeypatch.setenv("TMPDIR", str(tmp_path / name))
        found.add(devices.slot("GPU-x"))
    assert found == {tmp_path / "everybodys/GPU-x.lock"}


def test_a_link_is_no_lock(tmp_path: Path) -> None:
    devices.slot("GPU-x").unlink()
    (tmp_path / "locks" / "GPU-x.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="not a plain file"):
        devices.slot("GPU-x")
