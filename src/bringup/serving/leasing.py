"""Lease a server: start it or find it running, be alone with it, and notice when it fails."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup import resident
from bringup.artifact import write_text
from bringup.endpoint import Endpoint, NoReplyError
from bringup.redact import redacted
from bringup.resident import Home, State
from bringup.serving import devices, identity
from bringup.serving.errors import Busy, Interrupted, ServerFailed
from bringup.serving.server import Server, say
from bringup.serving.spec import ServerSpec
from bringup.serving.startup import (
    DYING_S,
    LOOK_S,
    REPORT_S,
    Limits,
    port_was_taken,
    wait_until_ready,
)

IDLE_S = 300.0
"""How long a server that no job uses is kept for the next one; one that is in the way goes at once,
and all go with their workflow."""

WAIT_S = 4 * 3600.0
"""How long other jobs' use of the server or the devices is waited for."""

STARTS = 3
"""How often a server is started that finds its port taken."""


@dataclass(frozen=True)
class Boot:
    """One life of a server, ready and ours alone.

    Attributes:
        id: its name in every result.
        endpoint: where it answers.
        log: its output so far; it grows while the server runs.
        load_s: seconds from its start to its first answer.
        gpus: the UUIDs of its GPUs; none on a CPU.
        argv: its command line as run, without secrets.
        model_info: what it says at ``/model_info`` (``/get_model_info``).
        server_info: what it says at ``/server_info`` (``/get_server_info``).
        pid: its process; what it started are that one's children.
    """

    id: str
    endpoint: Endpoint
    log: Path
    load_s: float
    gpus: tuple[str, ...]
    argv: tuple[str, ...]
    model_info: dict[str, Any]
    server_info: dict[str, Any]
    pid: int

    @property
    def url(self) -> str:
        """Its base address."""
        return self.endpoint.url


@contextlib.contextmanager
def lease(
    spec: ServerSpec, *, log_dir: Path, idle_s: float = IDLE_S, wait_s: float = WAIT_S
) -> Iterator[Boot]:
    """Yield the boot of a ready server that nobody else uses meanwhile.

    A server of this spec that runs is used again; else one is started, its output going to
    ``server.log`` in ``log_dir`` (an older log is kept as ``server.1.log``).

    Raises:
        ServerFailed: it did not come up, or failed while in use, whatever else that led to.
        Busy: the devices did not become free within ``wait_s`` seconds, or no port did.
        Interrupted: it was ended from outside.
        OSError: it could not be started at all.
    """
    home = Home.of(spec.process)
    with contextlib.ExitStack() as held:
        taken, state = reserve(spec, home, held, wait_s)
        server, boot = introduced(spec, home, state) or started(spec, home, taken, log_dir, idle_s)
        try:
            yield boot
        except Exception as error:
            if failure := failure_in_use(server):
                raise failure from error
            raise
        if failure := failure_in_use(server):
            raise failure


def reserve(
    spec: ServerSpec, home: Home, held: contextlib.ExitStack, wait_s: float
) -> tuple[list[str], State | None]:
    """Become the only user of a server and of its devices, until ``held`` is closed.

    Returns the devices' ids, and the server's state if it runs.

    Raises:
        Busy: that took more than ``wait_s`` seconds.
    """
    for _ in attempts(spec, wait_s, "another job's use of this server"):
        with contextlib.suppress(BlockingIOError):
            held.enter_context(home.used(shared=False, wait=False))
            break
    for _ in attempts(spec, wait_s, f"{spec.gpus} free GPUs" if spec.gpus else "the CPU"):
        with contextlib.ExitStack() as locks:
            state = home.live()
            if state:
                taken = devices.take_again(state.notes["devices"], locks)
            else:
                taken = devices.take(spec.gpus, locks)
            if taken and home.live() == state:  # not evicted while it was waited for
                held.enter_context(locks.pop_all())
                return taken, state
    raise AssertionError("attempts end by returning or raising")


def attempts(spec: ServerSpec, wait_s: float, what: str) -> Iterator[None]:
    """Yield now and again until the caller has what it wants; say what is waited for.

    Raises:
        Busy: ``wait_s`` seconds have passed.
    """
    began = time.monotonic()
    next_report = REPORT_S
    while True:
        yield
        waited = time.monotonic() - began
        if waited > wait_s:
            raise Busy(f"waited {waited:.0f} s for {what}")
        if waited > next_report:
            say(spec, f"waiting for {what}, {waited:.0f} s so far")
            next_report = 2 * waited
        time.sleep(LOOK_S)


def started(
    spec: ServerSpec, home: Home, taken: list[str], log_dir: Path, idle_s: float
) -> tuple[Server, Boot]:
    """Start a server on the devices ``taken`` and return it once it is ready.

    Raises:
        ServerFailed, Busy, Interrupted, OSError: see `lease`.
    """
    for _ in range(STARTS):
        port = identity.free_port()
        state = resident.start(
            spec.process,
            log=log_dir / "server.log",
            idle_s=idle_s,
            fill={"port": str(port)},
            env={"CUDA_VISIBLE_DEVICES": ",".join(gpus_of(taken))},
            notes={"port": port, "devices": taken},
        )
        server = Server(spec, home, state)
        try:
            return server, ready(server)
        except ServerFailed as failure:
            if not port_was_taken(failure.log):
                raise
            say(spec, f"somebody took port {port}, or one beside it, first")
        except NoReplyError as error:
            raise failure_in_use(server) or error from None
    raise Busy(f"somebody took the server's ports at each of {STARTS} starts")


def introduced(spec: ServerSpec, home: Home, state: State | None) -> tuple[Server, Boot] | None:
    """Return the server that runs already, once it is ready; None if there is none to be used."""
    if state is None:
        return None
    home.own()
    server = Server(spec, home, state)
    try:
        return server, ready(server)
    except NoReplyError as error:
        say(spec, f"the server that runs no longer answers ({error}); starting it again")
        home.stop()
        return None


def ready(server: Server) -> Boot:
    """Wait until ``server`` answers, make sure that it is ours and as planned; return its boot.

    Raises:
        ServerFailed, Interrupted: see `lease`.
        NoReplyError: it has answered, but does no longer.
    """
    load_s = load_seconds(server)
    spec, port = server.spec, server.port
    if not server.listens():
        raise NoReplyError(f"it doesn't listen on port {port}")
    model = identity.model_info(server.endpoint)
    account = identity.server_info(server.endpoint)
    if wrong := identity.mismatch(model, account, path=spec.model, port=port):
        raise server.stopped(wrong, "start", "not-as-planned")
    return Boot(
        id=server.state.boot,
        endpoint=server.endpoint,
        log=server.log,
        load_s=load_s,
        gpus=gpus_of(server.state.notes["devices"]),
        argv=tuple(redacted(resident.filled(spec.process.argv, {"port": str(port)}))),
        model_info=model,
        server_info=account,
        pid=server.state.pid,
    )


def load_seconds(server: Server) -> float:
    """Return how long the server took to its first answer, waiting for it if need be."""
    note = server.home.folder / "ready.json"
    with contextlib.suppress(FileNotFoundError):
        boot, load_s = json.loads(note.read_text())
        if boot == server.state.boot:
            return float(load_s)
    seconds = round(wait_until_ready(server, Limits(server.spec.startup_max_s)), 1)
    write_text(note, json.dumps([server.state.boot, seconds]))
    return seconds


def failure_in_use(server: Server) -> ServerFailed | Interrupted | None:
    """Return what is wrong with a server after its use, or None if it still serves."""
    deadline = time.monotonic() + DYING_S
    while server.runs():
        if identity.works(server.endpoint):
            return None
        if time.monotonic() > deadline:
            return server.stopped("the server no longer answers", "use", "no-answer")
        time.sleep(LOOK_S)
    return server.ended("use")


def gpus_of(taken: Iterable[str]) -> tuple[str, ...]:
    """Return those of the devices that are GPUs."""
    return tuple(device for device in taken if device != devices.CPU)
