"""The git command, away from the user's settings where results must not depend on them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class GitError(RuntimeError):
    """A git command that must succeed did not."""


def isolated() -> dict[str, str]:
    """Return an environment in which nobody's settings, hooks or prompts matter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {
        **kept,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in ``folder``, whatever it answers."""
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=isolated(),
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
    )


def output(folder: Path, *arguments: str) -> str:
    """Return what git prints.

    Raises:
        GitError: git said no.
    """
    done = run(folder, *arguments)
    if done.returncode:
        said = " | ".join(done.stderr.strip().splitlines()[-3:])
        raise GitError(f"git {arguments[0]} failed in {folder}: {said}")
    return done.stdout
