"""Ask an engine's own interpreter, through `inside`, the program that runs in it.

One process per build stays up as long as the workflow (or the command) that asked for it, so that
importing SGLang (10 to 25 s) is paid once and not by every job.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from pathlib import Path
from typing import Any

from bringup import paths, resident
from bringup.artifact import Document
from bringup.engine import environment, inside

PROGRAM = Path(inside.__file__)

IDLE_S = 600.0
"""A resident engine process that nobody has asked for this long ends."""

CONNECT_S = 60.0
"""Longest time that an engine's process gets to open its socket (it imports nothing before)."""


class EngineSilentError(OSError):
    """The engine's process gave no answer: it could not start, or died over the question."""


def ask(engine: Document, request: dict[str, Any], *, log: Path) -> dict[str, Any]:
    """Return an engine's answer to ``request`` (commands: see `inside`).

    Args:
        engine: an engine document (its ``python``, ``pythonpath`` and ``stand_in`` are read).
        request: ``{"command": "inspect" | "locate" | "read" | "bench" | "warm", …}``.
        log: file for what the engine prints over this request.

    Raises:
        EngineSilentError: no answer came.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({**request, "log": str(log.absolute())}) + "\n"
    spec = process(engine)
    process_log = paths.cache() / "logs" / f"{spec.name}-{spec.key}.log"
    with resident.running(spec, log=process_log, idle_s=IDLE_S) as state:
        reply = _exchange(state, resident.Home.of(spec), line)
    if not reply:
        raise EngineSilentError(
            f"engine {engine['engine']}: its process ended without an answer: {log}"
        )
    return dict(json.loads(reply))


def process(engine: Document) -> resident.Spec:
    """Describe the engine's process; engines that are the same build share it.

    Questions can be answered where no server could run: an engine for another machine's GPUs gets
    the stand-in for `sgl_kernel` here, and its document stays as it is.
    """
    pythonpath = [paths.actual(each) for each in engine["pythonpath"]]
    borrowed = not engine["stand_in"] and not environment.has_cuda()
    if borrowed:
        pythonpath.append(environment.STAND_IN)
    return resident.Spec(
        name="engine",
        argv=(
            str(paths.actual(engine["python"])),
            str(PROGRAM),
            *("--socket", "{home}/socket"),
            *("--edition", edition()),
            *(["--apart"] if environment.has_cuda() else []),
        ),
        env=environment.changes(pythonpath, stand_in=engine["stand_in"] or borrowed),
        grace_s=2.0,
    )


def edition() -> str:
    """Return eight digits that stand for the program and what it loads by place.

    A process that was started before an edit would go on as it was; a new edition is another one.
    """
    digest = hashlib.sha256()
    for file in (PROGRAM, inside.LOAD_CLIENT):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:8]


def _exchange(state: resident.State, home: resident.Home, line: str) -> str:
    with _connected(state, home) as connection:
        connection.sendall(line.encode())
        with connection.makefile("r", encoding="utf-8") as answers:
            return answers.readline()


def _connected(state: resident.State, home: resident.Home) -> socket.socket:
    deadline = time.monotonic() + CONNECT_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(home.folder / "socket"))
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
        if time.monotonic() > deadline or not home.is_alive():
            raise EngineSilentError(
                f"the engine's process did not open its socket: see {state.log}"
            )
        time.sleep(0.02)
