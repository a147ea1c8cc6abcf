"""The plans in the docs are what the program says today."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "plans"


def pages():
    specification = importlib.util.spec_from_file_location("make", FOLDER / "make.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.pages()


@pytest.mark.parametrize("name", ["8-rtx-pro-6000.md", "4-b200.md", "1-h200.md"])
def test_a_page_is_current(name):
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == pages()[name], "run: python docs/plans/make.py"
