"""Documents name no home folder, and mean the same one again when they are read."""

import json

import pytest

from bringup import artifact, paths
from bringup.evidence.server import server_document
from bringup.report import text
from bringup.serving import ServerSpec


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("/home/alice", "{home}"),
        ("/home/alice/x.jinja", "{home}/x.jinja"),
        ("--chat-template=/home/alice/x", "--chat-template={home}/x"),
        ('{"path": "/home/alice/x", "n": 1}', '{"path": "{home}/x", "n": 1}'),
        ("/home/alice/a:/home/alice/b", "{home}/a:{home}/b"),
        ("file:///home/alice/x", "file://{home}/x"),
        ("no such file: /home/alice.", "no such file: {home}."),
        ("/home/alice2/x", "/home/alice2/x"),
        ("/home/alice.old/x", "/home/alice.old/x"),
        ("/data/home/alice/x", "/data/home/alice/x"),
        ("https://home/alice/x", "https://home/alice/x"),
    ],
)
def test_the_home_folder_is_named_and_found_again(given, written):
    assert paths.homeless(given) == written
    assert paths.expanded(written) == given


@pytest.mark.parametrize("nobodys", ["/", ""])
def test_a_home_at_the_root_is_left_alone(monkeypatch, nobodys):
    monkeypatch.setenv("HOME", nobodys)
    assert paths.homeless("/usr/bin ~") == "/usr/bin ~"


PLAN = {
    "experiment": "e",
    "python": "/home/alice/venv/bin/python",
    "argv": ["-m", "sglang.launch_server", "--chat-template", "/home/alice/x.jinja"],
    "pythonpath": ["/home/alice/sglang/python"],
    "env": {"HF_HOME": "/home/alice/hub"},
    "flags": [{"flag": "--chat-template", "value": "/home/alice/x.jinja"}],
    "gpus": 0,
    "startup_max_s": 60,
}


def test_a_plan_written_without_the_home_starts_the_same_server(tmp_path):
    file = tmp_path / "plan.json"
    artifact.write(file, PLAN)
    assert "alice" not in file.read_text()
    weights = {"snapshot": "/models/m"}
    assert ServerSpec.of(artifact.read(file), weights) == ServerSpec.of(PLAN, weights)


def test_what_was_asked_for_below_the_home_is_no_difference(tmp_path):
    file, log = tmp_path / "plan.json", tmp_path / "server.log"
    artifact.write(file, PLAN)
    log.write_text("")
    server = server_document(
        experiment="e",
        plan=artifact.read(file),
        boot="b",
        argv=PLAN["argv"],
        gpus=[],
        load_s=1,
        server_info={"chat_template": "/home/alice/x.jinja"},
        model_info={},
        log=log,
        live={},
        imports={},
    )
    assert server["differences"] == []
    artifact.write(tmp_path / "server.json", server)
    written = artifact.read(tmp_path / "server.json")
    assert written["asked"]["--chat-template"] == "{home}/x.jinja"
    assert "alice" not in json.dumps(written)


def test_pages_show_a_tilde():
    assert text.plain("{home}/x and /home/bob/y") == "~/x and ~/y"
