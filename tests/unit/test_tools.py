"""The linters, formatters and the type checker have nothing to say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

TOOLS = {
    "ruff check": ["ruff", "check", "--no-cache"],
    "ruff format": ["ruff", "format", "--check", "--no-cache"],
    "snakefmt": ["snakefmt", "--check", "Snakefile", "workflow"],
    "mypy": ["mypy"],
    "snakemake --lint": ["snakemake", "--lint"],
}


@pytest.mark.parametrize("name", TOOLS)
def test_is_clean(name):
    program, *arguments = TOOLS[name]
    found = shutil.which(program, path=str(BIN)) or shutil.which(program)
    assert found, f"{program} is not installed; `uv sync` installs it"
    done = subprocess.run(
        [found, *arguments], cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
