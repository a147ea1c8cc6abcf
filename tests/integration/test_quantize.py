"""The forms of the small checkpoint, made with PyTorch in an engine's interpreter.

``BRINGUP_TEST_PYTHON`` names an interpreter that has ``torch`` and ``safetensors``; without it
an engine environment of this checkout is used, where one was built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bringup import artifact, paths

CHECKPOINT = paths.PROJECT / "resources" / "arithmetic-moe"
QUANTIZE = CHECKPOINT / "make" / "quantize.py"

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def python(real_engine: artifact.Document) -> Path:
    return paths.actual(real_engine["python"])


def quantize(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [python, QUANTIZE, *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_form_has_the_known_bytes(python: Path, tmp_path: Path) -> None:
    run = quantize(python, CHECKPOINT / "bf16", tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == (
        "fp8, nvfp4, nvfp4_hq, mixed, int4, mxfp4: every file has the known hash\n"
    )
    assert {folder.name for folder in tmp_path.iterdir()} == {
        "fp8",
        "nvfp4",
        "nvfp4_hq",
        "mixed",
        "int4",
        "mxfp4",
    }


def test_a_file_with_other_bytes_is_named(python: Path, tmp_path: Path) -> None:
    source = tmp_path / "bf16"
    shutil.copytree(CHECKPOINT / "bf16", source)
    (source / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    run = quantize(python, source, tmp_path, "--forms", "fp8")
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("fp8/chat_template.jinja: sha256 is ")


def test_quantized_weights_are_no_source(python: Path, tmp_path: Path) -> None:
    quantize(python, CHECKPOINT / "bf16", tmp_path, "--forms", "fp8")
    run = quantize(python, tmp_path / "fp8", tmp_path, "--forms", "int4")
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert line.endswith("config.json: already quantized; give the bf16 checkpoint")
    assert not (tmp_path / "int4").exists()
