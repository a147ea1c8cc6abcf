"""The command line that a person can copy, and the script that starts the same server again."""

import subprocess
from pathlib import Path

import pytest

from bringup import command

PLAN = {
    "experiment": "nvfp4",
    "python": "{cache}/envs/sglang-0.5.23/bin/python",
    "argv": [
        *("-m", "sglang.launch_server", "--model-path", "{model}", "--port", "{port}"),
        *("--json-model-override-args", '{"a": 1}', "--api-key", "{secret:MY_KEY}"),
        "--chat-template=/h/me/a template.jinja",
    ],
    "pythonpath": ["{cache}/overlays/x", "{project}/envs/cpu"],
    "env": {"SGLANG_X": "a b", "HF_HOME": "/h/me/it's $HF", "HF_TOKEN": "{secret:MY_TOKEN}"},
}


def test_the_line_is_whole_and_without_secrets():
    line = command.one_line(PLAN, "models/m")
    assert "--model-path models/m --port 30000" in line
    assert "{secret:MY_KEY}" in line


def test_a_draft_is_named_where_the_plan_wants_it():
    plan = PLAN | {"argv": [*PLAN["argv"], "--speculative-draft-model-path", "{draft}"]}
    assert command.words(plan, "models/m", draft="{cache}/snapshots/d")[-1] == "{cache}/snapshots/d"
    assert command.words(plan, "models/m")[-1] == "{draft}"
    script = command.script(plan, "models/m", Path("results"), draft="{cache}/snapshots/d")
    assert '--speculative-draft-model-path "$cache"/snapshots/d' in script


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder as after a run, in which the interpreter tells how it was called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/h/me")
    python = tmp_path / ".cache/envs/sglang-0.5.23/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "$PYTHONPATH"\necho "$SGLANG_X"\necho "$HF_HOME"\nprintf "%s\\n" "$@"\n'
    )
    python.chmod(0o755)
    folder = tmp_path / "results/experiments/nvfp4"
    folder.mkdir(parents=True)
    script = folder / "serve.sh"
    script.write_text(command.script(PLAN, "models/m", folder))
    return script


def run(script, **environment):
    return subprocess.run(
        ["bash", script], capture_output=True, text=True, check=False, cwd="/", env=environment
    )


def test_the_script_starts_the_same_server_from_anywhere(server, tmp_path):
    done = run(server, PATH="/usr/bin:/bin", MY_TOKEN="x", MY_KEY="k", PORT="31000", HOME="/h/me")
    path, variable, hub, *arguments = done.stdout.splitlines()
    assert path.split(":")[0] == f"{tmp_path}/.cache/overlays/x"
    assert Path(path.split(":")[1]).resolve() == Path(command.PROJECT, "envs/cpu")
    assert variable == "a b"
    assert hub == "/h/me/it's $HF"
    assert arguments[:6] == [*PLAN["argv"][:3], "models/m", "--port", "31000"]
    assert arguments[7:] == ['{"a": 1}', "--api-key", "k", "--chat-template=/h/me/a template.jinja"]


def test_the_script_asks_for_a_secret_that_is_not_set(server):
    done = run(server, PATH="/usr/bin:/bin", HOME="/h/me")
    assert done.returncode != 0
    assert "MY_TOKEN" in done.stderr


def test_the_script_names_no_home(server, tmp_path):
    text = server.read_text()
    assert str(tmp_path) not in text
    assert "/h/me" not in text


def test_where_there_is_no_server_the_script_says_why(tmp_path):
    script = tmp_path / "serve.sh"
    script.write_text(command.refusal({"message": "NVFP4 won't run; it needs `a` GPU"}))
    done = run(script, PATH="/usr/bin:/bin")
    assert done.returncode == 1
    assert done.stderr == "no server to start: NVFP4 won't run; it needs `a` GPU\n"
