"""Where things are, written so that a document means the same on another machine.

Documents never hold a home folder or a user's name: a path below the cache is written
``{cache}/…``, one below this checkout ``{project}/…``, one below the working directory relative
to it.  Other paths stand as the user gave them.
"""

from __future__ import annotations

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def cache() -> Path:
    """Return the folder of what is costly to make again: environments, clones, hub files."""
    return Path(os.environ.get("BRINGUP_CACHE") or ".cache").absolute()


def portable(path: str | os.PathLike[str]) -> str:
    """Return ``path`` as documents write it."""
    whole = Path(path).absolute()
    for name, base in (("{cache}", cache()), ("", Path.cwd()), ("{project}", PROJECT)):
        if whole.is_relative_to(base):
            below = whole.relative_to(base).as_posix()
            return f"{name}/{below}" if name else below
    return str(path)


def actual(path: str) -> Path:
    """Return the absolute path that a document's ``path`` stands for on this machine."""
    return Path(expanded(path)).absolute()


def expanded(text: str) -> str:
    """Return ``text`` (a path, an argument) with ``{cache}`` and ``{project}`` filled in."""
    return text.replace("{cache}", str(cache())).replace("{project}", str(PROJECT))
