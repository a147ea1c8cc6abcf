"""What can go wrong with a server, told apart by what it says about the experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Stage = Literal["start", "use"]
"""When a server failed: before its first answer, or after it."""

Cause = Literal[
    "exited", "silent", "too-slow", "port-taken", "bad-answer", "no-answer", "not-as-planned"
]
"""How a server failed: it ended; its log stood still until the time was up; its log went on until
the time was up; it could not have a port; it answered with an error; it stopped answering; it runs
something else."""


class ServerFailed(RuntimeError):  # noqa: N818  a fact about the experiment, not a fault of the job
    """The server did not come up, or died or hung in use.

    Attributes:
        log: its log.
        exit_code: its exit code, minus the number of the signal that ended it, or None if it was
            still running (it has been stopped since).
        stage: when it failed.
        cause: how it failed.
        boot: the id of the life that failed.
        seconds: how long it had been running.
    """

    def __init__(
        self,
        message: str,
        *,
        log: Path,
        exit_code: int | None,
        stage: Stage,
        cause: Cause,
        boot: str,
        seconds: float,
    ) -> None:
        super().__init__(message)
        self.log = log
        self.exit_code = exit_code
        self.stage = stage
        self.cause = cause
        self.boot = boot
        self.seconds = seconds


class Busy(OSError):  # noqa: N818
    """The devices did not become free in time; says nothing about the experiment."""


class Interrupted(OSError):  # noqa: N818
    """It was ended from outside (the workflow is over); says nothing about the experiment."""
