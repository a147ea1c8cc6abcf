"""Engine environments: one per release, made once, made again when they are not whole."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bringup import paths
from bringup.engine import environment

UV = """#!{python} -I
import os, pathlib, sys, time
folder = pathlib.Path({folder!r})
with (folder / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "venv":
    python = pathlib.Path(sys.argv[-1]) / "bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("")
elif sys.argv[1:3] == ["pip", "freeze"]:
    print("sglang==0.5.23\\ntorch==2.14.1")
elif (folder / "fail").exists():
    print("error: there is no version\\nof sglang==0.5.99", file=sys.stderr)
    sys.exit(1)
"""


@pytest.fixture
def uv(tmp_path, monkeypatch) -> Path:
    """Put a small program in uv's place; return the folder of its notes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "uv"
    script.write_text(UV.format(python=sys.executable, folder=str(folder)))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))
    return folder


def calls(uv: Path) -> list[str]:
    return (uv / "calls").read_text().splitlines()


def receipt(python: Path) -> dict:
    return json.loads((python.parents[1] / environment.RECEIPT).read_text())


def test_a_release_with_a_lock_file_is_installed_from_it(uv):
    python = environment.ensure("0.5.23")
    assert python.is_relative_to(paths.cache() / "envs")
    (sync,) = [call for call in calls(uv) if " sync " in call]
    assert "--require-hashes" in sync
    assert sync.endswith("envs/sglang-0.5.23.txt")
    assert receipt(python)["lock"] is not None


def test_a_python_without_wheels_gives_way_to_one_with(uv, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 14, 1))
    newer = environment.ensure("0.5.23")
    assert "--python 3.12 " in calls(uv)[0]
    monkeypatch.setattr(sys, "version_info", (3, 12, 4))
    assert environment.ensure("0.5.23") == newer, "the same Python, whoever asks for it"
    monkeypatch.setattr(sys, "version_info", (3, 11, 4))
    assert environment.ensure("0.5.23") != newer


def test_another_release_is_resolved_and_what_came_of_it_is_kept(uv):
    python = environment.ensure("0.5.99")
    assert any("pip install" in call and "sglang==0.5.99" in call for call in calls(uv))
    assert receipt(python) == {
        "version": "0.5.99",
        "lock": None,
        "freeze": ["sglang==0.5.23", "torch==2.14.1"],
    }


def test_it_is_made_once_and_again_when_it_was_deleted(uv):
    python = environment.ensure("0.5.23")
    made = len(calls(uv))
    assert environment.ensure("0.5.23") == python
    assert len(calls(uv)) == made
    shutil.rmtree(python.parents[1])
    environment.ensure("0.5.23")
    assert len(calls(uv)) == 2 * made


def test_what_an_interrupted_build_left_is_made_anew(uv):
    python = environment.ensure("0.5.23")
    (python.parents[1] / environment.RECEIPT).unlink()
    leftover = python.parents[1] / "half-written"
    leftover.write_text("")
    environment.ensure("0.5.23")
    assert not leftover.exists()


def test_two_jobs_make_it_once(uv):
    jobs = [threading.Thread(target=environment.ensure, args=("0.5.23",)) for _ in range(3)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert sum(call.startswith("venv") for call in calls(uv)) == 1


def test_a_failure_is_one_line_and_leaves_nothing_that_looks_ready(uv):
    (uv / "fail").touch()
    with pytest.raises(
        environment.EnvironmentUnusableError, match=r"0\.5\.99.*no version"
    ) as error:
        environment.ensure("0.5.99")
    assert "\n" not in str(error.value)
    (uv / "fail").unlink()
    assert environment.ensure("0.5.99").exists()


def test_releases_do_not_share_folders_or_locks(uv):
    one, other = environment.ensure("0.5.23"), environment.ensure("0.5.13.post1")
    assert one != other
    assert len(list((paths.cache() / "envs").glob("*.lock"))) == 2


def test_lock_files_name_no_place_of_the_machine_that_made_them():
    for lock in (paths.PROJECT / "envs").glob("sglang-*.txt"):
        text = lock.read_text()
        assert "--index" not in text
        assert "file:" not in text
        assert f"sglang=={lock.stem.removeprefix('sglang-')}" in text
        assert text.count("--hash=sha256:") > 1000


def test_the_environment_of_an_engines_processes(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    alone = environment.variables()
    assert "PYTHONDONTWRITEBYTECODE" not in alone
    assert "PYTHONPATH" not in alone
    both = environment.variables([tmp_path / "a", tmp_path / "b"], stand_in=True)
    assert both["PYTHONPATH"] == f"{tmp_path / 'a'}:{tmp_path / 'b'}"
    assert both["SGLANG_USE_CPU_ENGINE"] == "1"


def test_a_package_beside_the_caller_is_not_taken_for_the_interpreters(tmp_path, monkeypatch):
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    bare = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with pytest.raises(environment.EnvironmentUnusableError):
        environment.package(bare / "bin/python")
