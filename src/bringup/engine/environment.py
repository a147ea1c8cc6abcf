"""Python environments that hold an SGLang release, or an interpreter that someone else made.

A release with a lock file (``envs/sglang-<version>.txt``) is installed from it, hash by hash.
Any other release is resolved when it is first asked for; what came out is kept in its receipt.
Environments lie below the cache, one per release, Python and platform, hard-linked with uv's own
cache, and are shared by all engines on that release.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bringup import paths
from bringup.resident import locked

RECEIPT = "bringup-receipt.json"
"""Written last inside an environment: without it, the environment is unfinished and is remade."""

STAND_IN = paths.PROJECT / "envs" / "cpu"
"""Folder whose ``sgl_kernel`` takes the place of the CUDA-only kernel package on a CPU host."""

WHEELS_FOR = ("3.11", "3.12")
"""Pythons that every locked package has a wheel for: on newer ones outlines-core 0.1.26, which
SGLang 0.5.13.post1 and 0.5.23 ask for, would have to be compiled (it has none above 3.12)."""

CHECK_S = 60.0
"""Longest time that an interpreter gets to say where its packages lie."""

LOG_LINES = 15
"""How much of a failed command's output goes into the error."""


class EnvironmentUnusableError(RuntimeError):
    """An environment could not be made or is not usable; the message says why in one line."""


@dataclass(frozen=True)
class Release:
    """An SGLang release as an environment: its version and, where we carry one, its lock file."""

    version: str

    @property
    def lock(self) -> Path | None:
        """The hashed lock file, or None where the release is resolved on the fly."""
        file = paths.PROJECT / "envs" / f"sglang-{self.version}.txt"
        return file if file.is_file() else None

    @property
    def key(self) -> str:
        """Name of the environment's folder: what is in it decides it."""
        lock = self.lock
        wanted = lock.read_bytes() if lock else f"sglang=={self.version}".encode()
        python = python_for_engines()[1].replace(".", "")
        platform = f"cpython-{python} {sysconfig.get_platform()}"
        digest = hashlib.sha256(wanted + platform.encode()).hexdigest()[:12]
        return f"sglang-{self.version}-{digest}"

    @property
    def folder(self) -> Path:
        return paths.cache() / "envs" / self.key


def python_for_engines() -> tuple[str, str]:
    """Return what uv shall make an environment with, and that Python's version: ``3.12``.

    It is our own interpreter where SGLang's packages have wheels for it, else one that uv finds or
    fetches.
    """
    ours = ".".join(map(str, sys.version_info[:2]))
    return (sys.executable, ours) if ours in WHEELS_FOR else (WHEELS_FOR[-1], WHEELS_FOR[-1])


def ensure(version: str) -> Path:
    """Return the interpreter of the environment of SGLang ``version``, making it if need be.

    Two jobs never make the same environment at once: the second waits and finds it ready.

    Args:
        version: a release as PyPI spells it, ``0.5.23``.

    Raises:
        EnvironmentUnusableError: uv could not make it (no network, no such release, disk full).
    """
    release = Release(version)
    python = release.folder / "bin" / "python"
    release.folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(release.folder.with_name(f"{release.key}.lock")):
        if not (release.folder / RECEIPT).is_file():
            _make(release, python)
    return python


def checked(python: str | os.PathLike[str]) -> Path:
    """Return an interpreter that exists already, after looking for SGLang in it.

    Raises:
        EnvironmentUnusableError: it is not there, cannot be run, or has no SGLang.
    """
    interpreter = Path(python).absolute()
    if interpreter.is_dir() or not os.access(interpreter, os.X_OK):
        raise EnvironmentUnusableError(
            f"python: {python}: no such interpreter (a path to bin/python)"
        )
    package(interpreter)
    return interpreter


@cache
def has_cuda() -> bool:
    """Tell whether this host has NVIDIA's driver, without which `sgl_kernel` can't be imported."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def changes(pythonpath: Iterable[Path], *, stand_in: bool) -> dict[str, str | None]:
    """Return what the variables of a process of an engine change; None removes one.

    Byte code may be written (a PYTHONDONTWRITEBYTECODE meant for others makes each import of
    SGLang three times as slow), and no packages leak in from the caller's own path.
    """
    joined = os.pathsep.join(str(each) for each in pythonpath)
    return {
        "PYTHONDONTWRITEBYTECODE": None,
        "PYTHONHOME": None,
        "VIRTUAL_ENV": None,
        "PYTHONPATH": joined or None,
        **({"SGLANG_USE_CPU_ENGINE": "1"} if stand_in else {}),
    }


def variables(pythonpath: Iterable[Path] = (), *, stand_in: bool = False) -> dict[str, str]:
    """Return the whole environment of a process of an engine: this one's, with `changes`."""
    both = {**os.environ, **changes(pythonpath, stand_in=stand_in)}
    return {name: value for name, value in both.items() if value is not None}


def package(python: Path) -> Path:
    """Return the folder of the ``sglang`` package installed for ``python``, without importing it.

    Raises:
        EnvironmentUnusableError: there is none.
    """
    find = (
        "import importlib.util as u; s = u.find_spec('sglang'); "
        "print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')"
    )
    done = subprocess.run(
        [str(python), "-c", find],
        env=variables(),
        cwd=python.parent,  # no package is found where we happen to stand
        capture_output=True,
        text=True,
        timeout=CHECK_S,
    )
    found = done.stdout.strip()
    if done.returncode or not found:
        raise EnvironmentUnusableError(f"python: {python}: it has no package sglang")
    return Path(found)


def _make(release: Release, python: Path) -> None:
    shutil.rmtree(release.folder, ignore_errors=True)
    _uv(["venv", "--quiet", "--python", python_for_engines()[0], str(release.folder)], release)
    lock = release.lock
    common = ["--python", str(python), "--link-mode", "hardlink"]
    if lock:
        _uv(["pip", "sync", "--require-hashes", *common, str(lock)], release)
    else:
        wanted = f"sglang=={release.version}"
        _uv(["pip", "install", "--prerelease", "allow", *common, wanted], release)
    frozen = _uv(["pip", "freeze", "--python", str(python)], release)
    receipt = {
        "version": release.version,
        "lock": hashlib.sha256(lock.read_bytes()).hexdigest() if lock else None,
        "freeze": frozen.splitlines(),
    }
    draft = release.folder / f"{RECEIPT}.draft"
    draft.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    draft.replace(release.folder / RECEIPT)


def _uv(arguments: list[str], release: Release) -> str:
    beside = Path(sys.executable).with_name("uv")
    command = [str(beside) if beside.is_file() else "uv", *arguments]
    print(f"$ uv {' '.join(arguments)}", file=sys.stderr)
    done = subprocess.run(command, env=variables(), capture_output=True, text=True)
    print(done.stderr, file=sys.stderr)
    if done.returncode:
        said = " | ".join(line.strip() for line in done.stderr.strip().splitlines()[-LOG_LINES:])
        raise EnvironmentUnusableError(
            f"SGLang {release.version}: uv {arguments[0]} failed: {said}"
        )
    return done.stdout
