"""Taking traces of a running server: the load, the request, and waiting for the files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Answer, ScriptedServer

from bringup import artifact
from bringup.endpoint import Endpoint, NoReplyError
from bringup.evidence import profiling, take_kernels
from documents import checked

TRACE = Path(__file__).with_name("fixtures") / "evidence/h200-0.5.16-int4-marlin.trace.json.gz"
UNKNOWN = {
    "flag": "moe-runner-backend",
    "asked": None,
    "resolved": None,
    "used": None,
    "verdict": "unverified",
    "evidence": [],
}
SERVER = {
    "asked": {"moe-runner-backend": "cutlass"},
    "resolved": {},
    "backends": dict.fromkeys(("experts", "attention", "dense"), UNKNOWN),
}


class Engine:
    """What a server does with the requests of a profile."""

    def __init__(self, folder: Path, *, ranks: int = 2, running: int = 4) -> None:
        self.log = folder / "server.log"
        self.log.write_text("[2026-06-17 20:48:01] The server is fired up and ready to roll!\n")
        self.ranks, self.running = ranks, running
        self.started: list[dict[str, Any]] = []
        self.refuse = ""

    def __call__(self, path: str, body: dict[str, Any]) -> Answer:
        if path == self.refuse:
            return Answer("no such thing", status=404)
        if path == "/start_profile":
            self.started.append(body)
            for rank in range(self.ranks):
                shutil.copy(TRACE, Path(body["output_dir"]) / f"1-TP-{rank}.trace.json.gz")
        else:
            with self.log.open("a") as log:
                log.write(
                    f"[2026-06-17 20:49:01] Decode batch, #running-req: {self.running}, "
                    "#token: 9, cuda graph: True, gen throughput (token/s): 9.00, #queue-req: 0\n"
                )
        return Answer({})


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "SETTLED_S", 0.05)
    monkeypatch.setattr(profiling, "POLL_S", 0.005)
    monkeypatch.setattr(profiling, "FULL_BATCH_S", 0.3)
    monkeypatch.setattr(profiling, "TRACES_S", 0.3)


def take(engine: Engine, url: str, folder: Path, *, ranks: int = 2) -> artifact.Document:
    document = take_kernels(
        Endpoint(url),
        SERVER,
        experiment="x",
        boot="b-1",
        log=engine.log,
        folder=folder / "profile",
        concurrency=4,
        ranks=ranks,
    )
    checked(document)
    return document


def test_every_rank_is_profiled_while_all_requests_are_decoded(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    with ScriptedServer(engine) as server:
        document = take(engine, server.url, tmp_path)
    assert document["status"] == "ok"
    assert document["traces"] == 2
    assert document["concurrency"] == 4
    assert document["backends"]["experts"]["used"] == "marlin"
    assert document["backends"]["experts"]["verdict"] == "fell-back"
    (request,) = engine.started
    assert request["activities"] == ["CPU", "GPU"]
    assert request["num_steps"] == 20
    prompts = [body["text"] for path, body in server.requests if path == "/generate"]
    assert len(set(prompts)) == len(prompts) >= 4, "equal prompts would choose equal experts"


def test_a_cpu_is_one_rank_and_records_python_frames(tmp_path: Path) -> None:
    engine = Engine(tmp_path, ranks=1)
    with ScriptedServer(engine) as server:
        assert take(engine, server.url, tmp_path, ranks=0)["traces"] == 1
    assert engine.started[0]["activities"] == ["CPU"]
    assert engine.started[0]["with_stack"] is True


@pytest.mark.parametrize(
    ("fault", "class_"),
    [
        ({"running": 3}, "no-full-batch"),
        ({"ranks": 1}, "no-traces"),
        ({"refuse": "/start_profile"}, "profile-refused"),
        ({"refuse": "/generate"}, "load-refused"),
    ],
)
def test_a_server_that_gives_no_traces_is_a_fact(
    tmp_path: Path, fault: dict[str, Any], class_: str
) -> None:
    engine = Engine(tmp_path)
    for name, value in fault.items():
        setattr(engine, name, value)
    with ScriptedServer(engine) as server:
        document = take(engine, server.url, tmp_path)
    assert document["status"] == "failed"
    assert document["reason"]["class"] == class_


def test_a_server_that_is_gone_is_no_fact_about_kernels(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    with ScriptedServer(engine) as server:
        url = server.url
    with pytest.raises(NoReplyError):
        take(engine, url, tmp_path)
