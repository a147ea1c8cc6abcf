"""What a running process of an engine imports, with a small package in SGLang's place."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import fake_engine
import pytest
from test_engine import built, folders, patch_file  # noqa: F401 - a fixture

from bringup import paths
from bringup.engine import environment, proof


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    return fake_engine.make(tmp_path_factory.mktemp("engine") / "venv")


@pytest.fixture
def started() -> Iterator:
    """Start an interpreter with a path, as a server is; it waits for its input to close."""
    processes = []

    def start(python: Path, *pythonpath: Path) -> int:
        process = subprocess.Popen(
            [str(python), "-c", "print(flush=True); input()"],
            env=environment.variables(pythonpath),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        assert process.stdout
        process.stdout.readline()
        return process.pid

    yield start
    for process in processes:
        process.communicate(b"\n")


def test_the_patched_package_is_what_a_server_imports(python, tmp_path, started):
    document = built(python, tmp_path, patch_file(tmp_path))
    pid = started(python, *map(paths.actual, document["pythonpath"]))
    imports = proof.running(document, pid, proof.found(document, log=tmp_path / "log"))
    assert imports["file"] == f"{document['pythonpath'][0]}/sglang/__init__.py"
    assert imports["tree"] == document["tree"]
    assert imports["markers"] == [
        {"file": "launch_server.py", "text": 'print("two, patched")', "found": True}
    ]
    assert proof.refusal(document, imports) is None


def test_a_process_with_another_path_is_not_believed(python, tmp_path, started):
    document = built(python, tmp_path, patch_file(tmp_path))
    found = proof.found(document, log=tmp_path / "log")
    imports = proof.running(document, started(python), found)
    assert imports["pythonpath"] == []
    assert imports["file"] is None
    reason = proof.refusal(document, imports)
    assert reason["class"] == "another-sglang-imported"
    assert imports["python"] in reason["message"]


def test_a_file_that_was_changed_since_the_build(python, tmp_path, started):
    document = built(python, tmp_path, patch_file(tmp_path))
    overlay = paths.actual(document["pythonpath"][0])
    file = overlay / "sglang/launch_server.py"
    file.write_text(file.read_text().replace("two, patched", "two"))
    found = proof.found(document, log=tmp_path / "log")
    imports = proof.running(document, started(python, overlay), found)
    assert imports["tree"] != document["tree"]
    reason = proof.refusal(document, imports)
    assert reason["evidence"] == ["no marker of the patch in launch_server.py"]
    assert "engine.json" in reason["hint"]
