"""Where things are, written so that a document means the same on another machine.

Documents never hold a home folder or a user's name: a path below the cache is written
``{cache}/…``, one below this checkout ``{project}/…``, one below the working directory relative
to it, and wherever the user's home folder stands in a text, ``{home}`` stands in its place.
"""

from __future__ import annotations

import os
import re
from functools import cache as once
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


def homeless(text: str) -> str:
    """Return ``text`` with ``{home}`` wherever the home folder of this user stands in it."""
    home = _home()
    return text if not home or home not in text else _standing(home).sub("{home}", text)


def expanded(text: str) -> str:
    """Return ``text`` with ``{cache}``, ``{project}`` and ``{home}`` filled in."""
    for place, folder in (("{cache}", cache()), ("{project}", PROJECT), ("{home}", _home())):
        text = text.replace(place, str(folder))
    return text


def _home() -> str:
    # An empty HOME stays empty here (`Path.home` makes it "."); a home at / names nobody.
    return os.path.expanduser("~").rstrip("/")  # noqa: PTH111


@once
def _standing(home: str) -> re.Pattern[str]:
    """Return what finds ``home`` as a folder of its own: ``/data/root`` does not hold ``/root``."""
    return re.compile(rf"(?<![\w.-])(?<!:/){re.escape(home)}(?![\w-]|\.\w)")
