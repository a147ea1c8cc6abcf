"""Which of our own code a script runs: Snakemake doesn't see imports, so rules take it as params.

A package counts as a whole, because the tables beside its modules decide results as code does.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def fingerprints(script: Path) -> dict[str, str]:
    """Return the modules of this package that ``script`` imports, directly or through each other.

    Returns:
        Module or subpackage name → 8 hexadecimal digits that change with its content, sorted.

    Raises:
        SyntaxError: the script, or a module that it imports, is no Python.
    """
    found: set[str] = set()
    waiting = set(_imported(script))
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= set(_needs(name)) - found
    return {name: _fingerprint(name) for name in sorted(found)}


@cache
def _needs(name: str) -> tuple[str, ...]:
    modules = (path for path in _files(name) if path.suffix == ".py")
    return tuple(sorted({each for path in modules for each in _imported(path)}))


@cache
def _fingerprint(name: str) -> str:
    digest = hashlib.sha256()
    for path in _files(name):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:8]


def _imported(path: Path) -> Iterator[str]:
    """Yield the names right below this package that the file at ``path`` imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, below = name.partition(".")
            unit = below.partition(".")[0]
            if package == PACKAGE.name:
                yield unit if _files(unit) else "__init__"


@cache
def _files(name: str) -> tuple[Path, ...]:
    """Return the files of the module or package ``name`` right below this package, sorted."""
    module, folder = PACKAGE / f"{name}.py", PACKAGE / name
    if module.is_file():
        return (module,)
    below = folder.rglob("*") if name and folder.is_dir() else ()
    return tuple(sorted(p for p in below if p.is_file() and "__pycache__" not in p.parts))
