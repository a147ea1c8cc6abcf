"""The server's command line as a person would type it, from the plan that made it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from bringup.artifact import Document
from bringup.paths import HOME, PROJECT, homeless
from bringup.redact import REFERENCE, redacted

VARIABLES = {"{cache}": "$cache", "{project}": "$project", HOME: "$HOME"}
"""The places that documents name (`bringup.paths`), as a script names them."""

PLACES = re.compile(f"({'|'.join(VARIABLES)})")

PORT = "30000"
"""Where a server that is started by hand listens, unless PORT says otherwise (SGLang's default)."""


def words(plan: Document, model: str, *, draft: str | None = None, port: str = PORT) -> list[str]:
    """Return the whole argument list, the interpreter first, placeholders of paths left in."""
    given = {"{model}": model, "{port}": port, "{draft}": draft or "{draft}"}
    arguments = [given.get(argument, argument) for argument in plan["argv"]]
    return [plan["python"], *redacted(arguments)]


def one_line(plan: Document, model: str) -> str:
    """Return the command as one line to read; see `script` for one to run."""
    return shlex.join(words(plan, model))


def script(plan: Document, model: str, folder: Path, *, draft: str | None = None) -> str:
    """Return a shell script that starts this very server again, by hand, on port $PORT.

    It stands in ``folder`` (below the working directory) and goes by places relative to it, so
    that it holds no home folder and no user's name.  Secrets are taken from the caller's shell.
    """
    up = os.path.relpath(Path.cwd(), folder.absolute())
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# Starts the server of experiment {plan['experiment']} again, on $PORT or {PORT}.",
            "set -euo pipefail",
            f'cd "$(dirname "$0")/{up}"',
            'cache="$(realpath -m "${BRINGUP_CACHE:-.cache}")"',
            f'project="$(realpath {shlex.quote(os.path.relpath(PROJECT))})"',
            *_exports(plan),
            "unset PYTHONDONTWRITEBYTECODE",
            "exec " + " \\\n  ".join(_lines(plan, model, draft)),
            "",
        ]
    )


def refusal(reason: Document) -> str:
    """Return what stands in a script's place where there is no server to start."""
    said = shlex.quote(f"no server to start: {reason['message']}")
    return f"#!/usr/bin/env bash\nprintf '%s\\n' {said} >&2\nexit 1\n"


def _exports(plan: Document) -> Iterator[str]:
    """Yield the environment's lines; PYTHONPATH is the plan's alone."""
    path = ":".join(plan["pythonpath"])
    yield f"export PYTHONPATH={_quoted(path)}" if path else "unset PYTHONPATH"
    for name, value in plan["env"].items():
        yield f"export {name}={_quoted(value)}"


def _lines(plan: Document, model: str, draft: str | None) -> Iterator[str]:
    """Yield the command, an option a line."""
    line: list[str] = []
    for word in words(plan, model, draft=draft, port="{port}"):
        if word.startswith("--") and line:
            yield " ".join(line)
            line = []
        line.append(_quoted(word))
    yield " ".join(line)


def _quoted(word: str) -> str:
    """Quote ``word`` for the shell, with the places that the script knows by name filled in."""
    if word == "{port}":
        return f'"${{PORT:-{PORT}}}"'
    if secret := REFERENCE.fullmatch(word):
        return f'"${{{secret.group(1)}:?}}"'
    parts = PLACES.split(homeless(word))
    if len(parts) == 1:
        return shlex.quote(word)
    return "".join(f'"{VARIABLES[part]}"' if part in VARIABLES else _bare(part) for part in parts)


def _bare(part: str) -> str:
    """Quote a part of a word; one of no characters is nothing."""
    return shlex.quote(part) if part else ""
