"""Where things are, written so that a document means the same on another machine.

Documents never hold a home folder or a user's name: a path below the cache is written
``{cache}/…``, one below this checkout ``{project}/…``, one below the working directory relative
to it.  Where the user's home folder stands in a text, a file says ``{home}``: it is put there when
the file is written and filled in when it is read (`bringup.artifact`), so that code sees neither.
"""

from __future__ import annotations

import os
import re
from functools import cache as once
from pathlib import Path

HOME = "{home}"
"""What files say for the user's home folder."""

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


def homeless(text: str) -> str:
    """Return ``text`` with ``{home}`` wherever the home folder of this user stands in it."""
    folder = home()
    return _standing(folder).sub(HOME, text) if folder and folder in text else text


def expanded(text: str) -> str:
    """Return ``text`` (a path, an argument) with ``{cache}`` and ``{project}`` filled in."""
    return text.replace("{cache}", str(cache())).replace("{project}", str(PROJECT))


def home() -> str:
    """Return the user's home folder; empty where it is nobody's."""
    # An empty HOME stays empty here (`Path.home` makes it "."); a home at / names nobody.
    return os.path.expanduser("~").rstrip("/")  # noqa: PTH111


@once
def _standing(folder: str) -> re.Pattern[str]:
    """Return what finds ``folder`` as a whole path: ``/data/root`` does not hold ``/root``."""
    return re.compile(rf"(?<![\w.-])(?<!:/){re.escape(folder)}(?![\w-]|\.\w)")
