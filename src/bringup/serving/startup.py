"""Waiting for a server's first answer: as long as it gets on, and no longer."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from bringup.endpoint import NoReplyError, Reply
from bringup.resident.log import NOTE
from bringup.serving.errors import Cause
from bringup.serving.identity import answers
from bringup.serving.server import Server, say

REPORT_S = 10.0
"""How often a waiting job says how it stands."""

LOOK_S = 0.1

ATTEMPTS = 3
"""How often the first question is asked of a server that says it is well."""

FIRST_QUESTION = {"text": "1+1=", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}


@dataclass(frozen=True)
class Limits:
    """How long a server that starts is waited for.

    Attributes:
        max_s: to its first answer, whatever its log says.
        first_s: from its start, even if its log stands still: a first start compiles kernels, in
            silence, for 10-30 minutes (vLLM #48031).
        silence_s: since its log last grew, after that: what comes late (graphs, autotuning) is
            compiled in silence too.
        still_s: a log that has not grown for so long does not count as growing at ``max_s``.
    """

    max_s: float
    first_s: float = 1800.0
    silence_s: float = 1200.0
    still_s: float = 60.0


class Patience:
    """Tells when a server that starts must not be waited for any longer."""

    def __init__(self, server: Server, limits: Limits) -> None:
        self._server = server
        self._limits = limits
        self._seen = (0, 0)
        self._grew_at = 0.0

    def ended(self) -> Cause | None:
        """Return why the time is up, or None."""
        seconds = self._server.seconds
        status = self._server.log.stat()
        if (status.st_ino, status.st_size) != self._seen:  # a capped log may shrink, renewed
            self._seen = (status.st_ino, status.st_size)
            self._grew_at = seconds
            if port_was_taken(self._server.log):
                return "port-taken"
        limits = self._limits
        if seconds > limits.max_s:
            return "silent" if self.silence > limits.still_s else "too-slow"
        if seconds > limits.first_s and self.silence > limits.silence_s:
            return "silent"
        return None

    @property
    def silence(self) -> float:
        """Seconds for which the log has not grown."""
        return self._server.seconds - self._grew_at


class FirstAnswer(threading.Thread):
    """Asks a server for a few tokens as soon as it can be asked.

    A thread, because the answer may take minutes (kernels are compiled for it) in which the
    server may die; a daemon, because a job that is interrupted does not wait for it.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._given_up = threading.Event()
        self.reply: Reply | None = None

    def give_up(self) -> None:
        """Ask no more."""
        self._given_up.set()

    def run(self) -> None:
        """Wait until the server itself says that it is well, then ask."""
        while not (self._server.listens() and answers(self._server.endpoint)):
            if self._given_up.wait(LOOK_S):
                return
        for _ in range(ATTEMPTS):
            try:
                self.reply = self._server.endpoint.post("/generate", FIRST_QUESTION, timeout_s=1800)
            except NoReplyError as error:
                self.reply = Reply(0, str(error))
            if is_answer(self.reply) or self._given_up.wait(1):
                return


def is_answer(reply: Reply) -> bool:
    """Tell whether a server generated something (not whether it is right)."""
    return reply.status == 200 and isinstance(reply.json, dict) and "text" in reply.json


def wait_until_ready(server: Server, limits: Limits) -> float:
    """Return the seconds from the server's start to its first answer; say how it gets on.

    Raises:
        ServerFailed: it ended, took too long, or answered with an error; it has been stopped.
        Interrupted: it was ended from outside.
    """
    patience = Patience(server, limits)
    next_report = server.seconds + REPORT_S
    answer = FirstAnswer(server)
    answer.start()
    try:
        while answer.is_alive():
            if not server.runs():
                raise server.ended("start")
            if cause := patience.ended():
                raise server.stopped(
                    f"no answer {server.seconds:.0f} s after its start; "
                    f"its log last grew {patience.silence:.0f} s ago",
                    "start",
                    cause,
                )
            if server.seconds > next_report:
                next_report += REPORT_S
                newest = newest_line(server.log)
                say(server.spec, f"loading for {server.seconds:.0f} s: {newest}")
            answer.join(LOOK_S)
    finally:
        answer.give_up()
    seconds = server.seconds
    if answer.reply is None or not is_answer(answer.reply):
        raise failed_to_answer(server, answer.reply)
    return seconds


def failed_to_answer(server: Server, reply: Reply | None) -> Exception:
    """Return the error of a server that says it is well and then doesn't answer.

    Its scheduler may just have died of the question; it ends by itself then, and that is told.
    """
    deadline = time.monotonic() + DYING_S
    while time.monotonic() < deadline:
        if not server.runs():
            return server.ended("start")
        time.sleep(LOOK_S)
    said = f"{reply.status}: {reply.text[:300]}" if reply else "nothing"
    return server.stopped(f"its first generation failed: {said}", "start", "bad-answer")


DYING_S = 15.0
"""How long a server goes on after the death of its scheduler (SGLang 0.5.23: 6 s)."""


def port_was_taken(log: Path) -> bool:
    """Tell whether somebody took a port that the server wanted.

    SGLang 0.5.23 then neither listens nor ends.
    """
    return "address already in use" in tail(log).lower()


def newest_line(log: Path, width: int = 160) -> str:
    """Return the last line of a log that says something (of a progress bar: its newest state)."""
    lines = (line.strip() for line in re.split(r"[\r\n]+", tail(log)))
    said = [line for line in lines if line and not line.startswith(NOTE)]
    return said[-1][:width] if said else "(nothing in its log yet)"


def tail(log: Path, size: int = 16384) -> str:
    """Return the last ``size`` bytes of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        return file.read().decode("utf-8", "replace")
