"""Which of our own files a script runs: Snakemake doesn't see imports, so rules name them as inputs.

A package counts as a whole, because the tables beside its modules decide results as code does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def first_party(script: Path) -> list[Path]:
    """Return the files of this package that ``script`` imports, directly or through each other.

    Raises:
        SyntaxError: the script, or a module that it imports, is no Python.
    """
    files: set[Path] = set()
    waiting = [script]
    while waiting:
        for name in _imported(waiting.pop()):
            for path in _files(name):
                if path not in files:
                    files.add(path)
                    waiting += [path] if path.suffix == ".py" else []
    return sorted(files)


def _imported(path: Path) -> Iterator[str]:
    """Yield the names below this package that the file at ``path`` imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, below = name.partition(".")
            if package == PACKAGE.name:
                yield below.partition(".")[0]


def _files(name: str) -> list[Path]:
    """Return the files of the module or package ``name`` below this package."""
    folder = PACKAGE / name
    if name and folder.is_dir():
        return [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    module = PACKAGE / f"{name}.py"
    return [module] if name and module.is_file() else [PACKAGE / "__init__.py"]
