"""Documents name no home folder, and mean the same one again when they are read."""

import json

import pytest

from bringup import artifact, paths
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
def test_the_home_folder_is_named_and_found_again(tmp_path, given, written):
    assert paths.homeless(given) == written
    artifact.write(tmp_path / "it.json", {"it": given})
    assert json.loads((tmp_path / "it.json").read_text()) == {"it": written}
    assert artifact.read(tmp_path / "it.json") == {"it": given}


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
    assert artifact.read(file) == PLAN
    started = ServerSpec.of(artifact.read(file), {"snapshot": "/models/m"}).process
    assert started.argv == ("/home/alice/venv/bin/python", *PLAN["argv"])
    assert started.env["HF_HOME"] == "/home/alice/hub"


def test_pages_show_a_tilde():
    assert text.plain("{home}/x and /home/bob/y") == "~/x and ~/y"
