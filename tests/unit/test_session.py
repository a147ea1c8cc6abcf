"""What a stage makes of its experiment's server, and what it says when that fails."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bringup import artifact, serving, session
from bringup.resident import Home
from bringup.serving import leasing

FAKE = Path(__file__).with_name("fake_server.py")
BUILD = artifact.document("engine/1", "failed")  # nothing of it to be made again

Served = Callable[..., artifact.Document]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Have work done on a fake server with some flags; nothing is left at the end."""
    monkeypatch.setenv("BRINGUP_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("BRINGUP_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("BRINGUP_OWNER", str(os.getpid()))
    monkeypatch.setattr(leasing, "DYING_S", 0.3)
    monkeypatch.setattr("bringup.serving.startup.ATTEMPTS", 1)
    monkeypatch.setattr("bringup.serving.startup.DYING_S", 0.2)

    def do(
        work: Callable[[serving.Boot], artifact.Document],
        *flags: str,
        cause: artifact.Document | None = None,
    ) -> artifact.Document:
        plan = {
            "experiment": "it",
            "python": sys.executable,
            "argv": ["-IS", str(FAKE), "--model-path", "{model}", "--port", "{port}", *flags],
            "env": {},
            "pythonpath": [],
            "gpus": 0,
            "startup_max_s": 60,
        }
        weights = {"snapshot": str(tmp_path / "model")}
        return session.served(
            *("probe/1", work, plan, weights, BUILD),
            cause=cause,
            folder=tmp_path,
            experiment="it",
        )

    yield do
    for home, _ in Home.all_live():
        home.stop()


def answered(boot: serving.Boot) -> artifact.Document:
    return artifact.document("probe/1", experiment="it", boot=boot.id, items=[1])


def killed(boot: serving.Boot) -> artifact.Document:
    ((_, state),) = Home.all_live()
    os.kill(state.pid, signal.SIGKILL)
    return answered(boot)


def hung(boot: serving.Boot) -> artifact.Document:
    boot.endpoint.get("/hang", timeout_s=5)
    return answered(boot)


def test_a_document_is_what_the_work_makes_of_the_server(served: Served) -> None:
    document = served(answered)
    assert (document["status"], document["items"]) == ("ok", [1])


@pytest.mark.parametrize(("work", "class_"), [(killed, "killed"), (hung, "no-answer")])
def test_a_server_that_fails_is_a_result_which_keeps_what_was_made(
    served: Served, work: Any, class_: str
) -> None:
    document = served(work)
    assert (document["status"], document["reason"]["class"]) == ("failed", class_)
    assert document["items"] == [1]
    assert document["boot"]


@pytest.mark.parametrize(
    ("flags", "class_", "words"),
    [
        (("--crash", "3"), "exception", "RuntimeError: out of luck"),
        (("--refuse",), "bad-answer", "no kernel image"),
        (("--claim", "/other"), "not-as-planned", "model_path is '/other'"),
    ],
)
def test_a_server_that_does_not_come_up_is_a_result(
    served: Served, flags: tuple[str, ...], class_: str, words: str
) -> None:
    document = served(answered, *flags)
    assert document.keys() >= {"experiment", "boot"}
    assert (document["status"], document["reason"]["class"]) == ("failed", class_)
    assert words in document["reason"]["message"]


def test_after_a_cause_no_server_is_started(served: Served) -> None:
    said = artifact.reason("unsupported", "no kernels")
    document = served(answered, cause=artifact.document("plan/1", "refused", said))
    assert (document["status"], document["experiment"]) == ("skipped", "it")
    assert document["reason"]["message"] == "plan refused: no kernels"
    assert not list(Home.all_live())


def test_an_error_of_the_work_itself_is_no_result(served: Served) -> None:
    def broken(boot: serving.Boot) -> artifact.Document:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        served(broken)
