"""A server that has been started, and the ways in which it can turn out to have failed."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bringup.endpoint import Endpoint
from bringup.resident import Home, State
from bringup.serving.errors import Cause, Interrupted, ServerFailed, Stage
from bringup.serving.identity import HOST, listens
from bringup.serving.spec import ServerSpec


def say(spec: ServerSpec, text: str) -> None:
    """Tell the person who waits for a server: in the job's log, and on the terminal."""
    for stream in {sys.stderr, sys.__stderr__}:
        print(f"{spec.process.name}: {text}", file=stream, flush=True)


@dataclass(frozen=True)
class Server:
    """One life of a server: its process, and where it answers once it does."""

    spec: ServerSpec
    home: Home
    state: State

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers."""
        return Endpoint(f"http://{HOST}:{self.port}", self.spec.api_key)

    @property
    def port(self) -> int:
        """The port that it was given."""
        return int(self.state.notes["port"])

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return Path(self.state.log)

    @property
    def seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self.state.started

    def listens(self) -> bool:
        """Tell whether it, and not somebody else, listens on its port."""
        return listens(self.state.pid, self.port)

    def runs(self) -> bool:
        """Tell whether it is there and not about to end."""
        return self.home.is_alive() and self.home.state().ending is None

    def stopped(self, message: str, stage: Stage, cause: Cause) -> ServerFailed:
        """Stop it, and return the error that says why it had to be."""
        self.home.stop()
        return self._failed(message, stage, cause, None)

    def ended(self, stage: Stage) -> ServerFailed | Interrupted:
        """Return the error that says how it ended, once it has."""
        self.home.wait_for_end()
        state = self.home.state()
        if state.ending != "exited" or state.exit_code is None:
            why = state.ending or "its supervisor was killed"
            return Interrupted(f"the server was ended from outside ({why})")
        message = f"the server ended with {described(state.exit_code)} after {self.seconds:.0f} s"
        return self._failed(message, stage, "exited", state.exit_code)

    def _failed(
        self, message: str, stage: Stage, cause: Cause, exit_code: int | None
    ) -> ServerFailed:
        return ServerFailed(
            message,
            log=self.log,
            exit_code=exit_code,
            stage=stage,
            cause=cause,
            boot=self.state.boot,
            seconds=self.seconds,
        )


def described(exit_code: int) -> str:
    """Return an exit code in words: ``exit code 1``, ``SIGKILL``."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return signal.Signals(-exit_code).name
