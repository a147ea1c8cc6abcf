"""The life of a real SGLang server in the hands of jobs; test_faults_real has how runs end."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bringup.paths import PROJECT
from bringup.resident import Home, State
from bringup.serving import (
    Busy,
    ServerFailed,
    ServerSpec,
    devices,
    identity,
    lease,
    leasing,
)

pytestmark = pytest.mark.real

MODEL = PROJECT / "resources" / "arithmetic-moe" / "bf16"
ON_CPU = (
    *("--device", "cpu"),
    *("--max-total-tokens", "8192"),
    *("--max-running-requests", "16"),
    *("--mem-fraction-static", "0.3"),
)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run folder of the test's own; the devices' locks are everybody's."""
    monkeypatch.setenv("BRINGUP_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("BRINGUP_OWNER", str(os.getpid()))
    yield
    for home, _ in Home.all_live():
        home.stop()


@pytest.fixture
def spec(real_engine: dict[str, Any], tmp_path: Path) -> Callable[..., ServerSpec]:
    """Make the spec of a server of the small arithmetic checkpoint, with some more flags."""
    gpus = min(1, len(devices.look()))

    def make(*flags: str, name: str = "real") -> ServerSpec:
        plan = {
            "experiment": name,
            "python": real_engine["python"],
            "argv": [
                *("-m", "sglang.launch_server"),
                *("--model-path", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
                *(() if gpus else ON_CPU),
                *flags,
            ],
            "env": {"SGLANG_USE_CPU_ENGINE": "1"} if real_engine["stand_in"] else {},
            "pythonpath": real_engine["pythonpath"],
            "gpus": gpus,
            "startup_max_s": 600,
        }
        return ServerSpec.of(plan, {"snapshot": str(MODEL)})

    return make


def state(of: ServerSpec) -> State:
    return Home.of(of.process).state()


def nothing_left(of: ServerSpec) -> bool:
    """Tell whether no process of the server's session is left (what waits to be reaped is gone)."""
    left = [psutil.Process(pid) for pid in identity.members(state(of).pid)]
    return all(process.status() == psutil.STATUS_ZOMBIE for process in left)


def child(of: ServerSpec, name: str) -> psutil.Process:
    """Return a process of the server by the name that SGLang gives it."""
    children = psutil.Process(state(of).pid).children(recursive=True)
    return next(process for process in children if name in " ".join(process.cmdline()))


def test_one_load_for_all_jobs_until_its_scheduler_dies(
    spec: Callable[..., ServerSpec], tmp_path: Path
) -> None:
    with lease(spec(), log_dir=tmp_path) as first:
        answer = first.endpoint.post(
            "/v1/chat/completions",
            {
                "model": str(MODEL),
                "messages": [
                    {"role": "user", "content": "What is 17*23? Answer with the number only."}
                ],
                "temperature": 0,
                "max_tokens": 8,
            },
            timeout_s=60,
        ).json
        assert answer["choices"][0]["message"]["content"] == "391"
        with pytest.raises(Busy, match="this server"):  # two workflows, one server
            lease(spec(), log_dir=tmp_path, wait_s=0.5).__enter__()
        with pytest.raises(Busy, match=r"the CPU|free GPUs"):  # two workflows, one machine
            lease(spec(name="other"), log_dir=tmp_path, wait_s=0.5).__enter__()
    assert first.model_info["model_path"] == str(MODEL)
    assert first.server_info["version"]

    began = time.monotonic()
    with pytest.raises(ServerFailed) as caught, lease(spec(), log_dir=tmp_path) as second:
        assert second.id == first.id
        assert second.load_s == first.load_s
        assert time.monotonic() - began < 5
        child(spec(), "scheduler").kill()
        second.endpoint.post("/generate", {"text": "1+1="}, timeout_s=60)
    assert (caught.value.stage, caught.value.boot) == ("use", first.id)
    assert nothing_left(spec())


def test_a_wrong_argument_ends_it(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match="exit code 2") as caught,
        lease(spec("--moe-runner-backend", "abacus"), log_dir=tmp_path),
    ):
        pass
    assert "invalid choice: 'abacus'" in caught.value.log.read_text()


def test_a_port_that_is_taken_while_it_loads(
    spec: Callable[..., ServerSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", identity.free_port()))
        stranger.listen()
        free = identity.free_port
        ports = iter([stranger.getsockname()[1], free()])
        monkeypatch.setattr(leasing.identity, "free_port", lambda: next(ports))
        with lease(spec(), log_dir=tmp_path) as boot:
            assert boot.server_info["port"] != stranger.getsockname()[1]
    assert "address already in use" in (tmp_path / "server.1.log").read_text().lower()
