"""Background processes that outlive the job which started them, but never their workflow.

A job names what it needs by a `Spec` and enters `running`.  If no process of that name is up, a
detached *supervisor* (`bringup.resident.supervisor`) starts one; later jobs find it there.  State
is kernel locks, dropped however their holder dies, in one folder for each process:

``alive``   held by the supervisor for the whole life of its process
``use``     held by the jobs that are using it; the supervisor takes it when nobody does
``start``   held by a job while it looks whether the process is up and starts it

The supervisor ends its process, and everything which that has started, when nobody has used it
for a while, when it is told to (`Home.stop`), or when the last of its *owners* (the workflows
that asked for it) has ended.  If the supervisor itself is killed, its parent kills the process.

Linux only: flock, pidfd, ``PR_SET_PDEATHSIG`` and ``PR_SET_CHILD_SUBREAPER`` (``man 2 prctl``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bringup.resident.home import Home, Order, Spec, State, locked, owner
from bringup.resident.log import rotate

__all__ = ["Home", "Spec", "State", "filled", "locked", "owner", "running", "start"]


@contextlib.contextmanager
def running(spec: Spec, *, log: Path, idle_s: float) -> Iterator[State]:
    """Yield the state of the process that ``spec`` describes, starting it if it isn't up.

    Several jobs may use it at once.  ``log`` gets its output if this starts it.

    Raises:
        OSError: it could not be started.
    """
    home = Home.of(spec)
    with home.used(shared=True):
        with locked(home.folder / "start"):
            state = home.live() or start(spec, log=log, idle_s=idle_s)
            home.own()
        yield state


def start(
    spec: Spec,
    *,
    log: Path,
    idle_s: float,
    fill: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    notes: Mapping[str, Any] | None = None,
) -> State:
    """Start the process of ``spec`` under a supervisor; an older ``log`` is kept beside it.

    ``fill``, ``env`` and ``notes`` are this life's own and no part of the spec's key: values for
    placeholders in argv, more variables, and what `State.notes` shall hold.  The caller makes
    sure that nobody else starts the same spec at the same time (see `running`).

    Raises:
        OSError: it could not be started.
    """
    home = Home.of(spec)
    log = log.absolute()
    rotate(log)
    (home.folder / "state.json").unlink(missing_ok=True)  # it tells of an earlier life
    order = Order(
        home=str(home.folder),
        argv=filled(spec.argv, {"home": str(home.folder), **(fill or {})}),
        env={**spec.env, **(env or {})},
        cwd=spec.cwd,
        grace_s=spec.grace_s,
        idle_s=idle_s,
        owner=owner(),
        log=str(log),
        notes=dict(notes or {}),
    )
    complaints = home.folder / "supervisor.log"
    with complaints.open("w") as sink:
        supervisor = subprocess.run(  # it leaves a copy of itself behind, detached
            [sys.executable, "-m", "bringup.resident.supervisor"],
            input=json.dumps(dataclasses.asdict(order)),
            stdout=subprocess.PIPE,
            stderr=sink,
            start_new_session=True,
            check=False,
            text=True,
        )
    try:
        answer = json.loads(supervisor.stdout)
    except json.JSONDecodeError:
        complaint = complaints.read_text(errors="replace")[-2000:]
        raise OSError(f"the supervisor of {spec.name} did not start:\n{complaint}") from None
    if "error" in answer:
        raise OSError(f"{spec.name} did not start: {answer['error']}")
    return State(**answer)


def filled(argv: tuple[str, ...], values: Mapping[str, str]) -> list[str]:
    """Return ``argv`` with ``{name}`` replaced where ``values`` has the name."""
    whole = list(argv)
    for name, value in values.items():
        whole = [argument.replace(f"{{{name}}}", value) for argument in whole]
    return whole
