"""The supervisor of a background process: starts it, watches it, and ends all of it.

Run with ``-m`` by `bringup.resident.start`.  Two processes: the supervisor proper, and its parent,
which only waits for it and, should it be killed, kills what it leaves behind.  (That the kernel
kills the process itself then is not enough: children of SGLang that were still importing stayed.)
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from bringup.paths import homeless
from bringup.redact import redacted
from bringup.resident.home import Cause, Home, Order, State, locked
from bringup.resident.log import CappedLog, pump, secret_values

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h

TICK_S = 0.2
"""How often a supervisor looks at its locks and owners, and a waiting job at its lock."""

LINGER_S = 1.0
"""How long a process may go on after TERM when all its children have ended.

SGLang 0.5.23's launcher takes 6 s (it waits before looking into why its scheduler has gone), which
every change of servers would cost; the scheduler and its memory are gone after 0.2 s.
"""

KILLED_S = 30.0
"""How long killed processes are waited for (one in the kernel, freeing memory, takes its time)."""


class Owners:
    """Tells when the last process for whose sake another runs has ended."""

    def __init__(self, folder: Path, first: int) -> None:
        self._folder = folder
        self._descriptors: dict[int, int] = {}
        for stale in folder.iterdir():
            stale.unlink()
        (folder / str(first)).touch()

    def all_ended(self) -> bool:
        """Look for new owners, drop ended ones, and tell whether none is left."""
        for entry in list(self._folder.iterdir()):
            pid = int(entry.name)
            if not self._runs(pid):
                entry.unlink(missing_ok=True)
        return not self._descriptors

    def _runs(self, pid: int) -> bool:
        if pid not in self._descriptors:
            try:
                self._descriptors[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                return False
        if select.select([self._descriptors[pid]], [], [], 0)[0]:
            os.close(self._descriptors.pop(pid))
            return False
        return True


class Supervisor:
    """Starts one process, watches it and ends it."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._home = Home(Path(order.home))
        self._log = CappedLog(Path(order.log))
        self._owners = Owners(self._home.folder / "owners", order.owner)
        self._stopped = False
        self._signalled, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake)  # TERM ends a wait at once
        signal.signal(signal.SIGTERM, self._stop)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def run(self, reply: int) -> None:
        """Start the process, say so to the pipe ``reply``, and live as long as it does."""
        try:
            output = self._start()
        except OSError as error:
            answer(reply, {"error": str(error)})
            return
        answer(reply, dataclasses.asdict(self._state))
        with contextlib.ExitStack() as held:
            cause = self._watch(held)
            self._publish(ending=cause)
            left = self._end()
            output.join(timeout=5)
            code = self._child.returncode
            self._publish(ending=cause, exit_code=code)
            self._log.note(f"ended ({cause}), exit code {code}")
            if left:
                self._log.note(f"could not be killed: {left}")

    def _start(self) -> threading.Thread:
        """Start and publish the process; return the thread that writes its log."""
        order = self._order
        env = changed(os.environ, order.env)
        self._child, output = spawn(order, env)
        boot = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        self._state = State(
            boot=boot,
            supervisor=os.getpid(),
            pid=self._child.pid,
            started=time.monotonic(),
            log=order.log,
            notes=order.notes,
        )
        self._publish()
        self._log.note(f"boot {boot}: {homeless(' '.join(redacted(order.argv)))}")
        hidden = secret_values(order.argv, env)
        thread = threading.Thread(target=pump, args=(output, self._log, hidden), daemon=True)
        thread.start()
        return thread

    def _publish(self, **changes: Any) -> None:
        self._state = dataclasses.replace(self._state, **changes)
        self._home.publish(self._state)

    def _watch(self, held: contextlib.ExitStack) -> Cause:
        """Return why the process must end; when idle, with ``use`` held against new users."""
        child = os.pidfd_open(self._child.pid)
        last_used = time.monotonic()
        while child not in select.select([child, self._signalled], [], [], TICK_S)[0]:
            if self._stopped:
                return "stopped"
            if self._owners.all_ended():
                return "owner"
            use = contextlib.ExitStack()
            try:
                use.enter_context(self._home.used(shared=False, wait=False))
            except BlockingIOError:
                last_used = time.monotonic()
            if time.monotonic() - last_used > self._order.idle_s:
                held.enter_context(use)
                return "idle"
            use.close()
            self._reap()
        return "exited"

    def _end(self) -> list[int]:
        """End the process and all that it started; return the ids of what can't be killed."""
        had_children = len(self._living()) > 1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGTERM)
            os.killpg(self._child.pid, signal.SIGCONT)  # a stopped process hears nothing
        kill_at = time.monotonic() + self._order.grace_s
        last_busy = time.monotonic()
        while living := self._living():
            now = time.monotonic()
            if not (had_children and self._is_alone(living)):
                last_busy = now
            if now > kill_at + KILLED_S:
                break
            if now > kill_at:
                kill(living)
            elif now > last_busy + LINGER_S:
                kill(process for process in living if process.pid == self._child.pid)
            time.sleep(0.02)
        return [process.pid for process in living]

    def _living(self) -> list[psutil.Process]:
        """Return what still runs of the process and of all that it started."""
        self._reap()
        return living()

    def _is_alone(self, living: list[psutil.Process]) -> bool:
        """Tell whether only the process itself is left, but for what ends right after it."""
        others = [process for process in living if process.pid != self._child.pid]
        return len(others) < len(living) and all(map(is_resource_tracker, others))

    def _reap(self) -> None:
        """Let no ended process wait to be reaped, and keep the exit code of the one that counts."""
        code = reaped().get(self._child.pid)
        if code is not None:
            self._child.returncode = code


def reaped() -> dict[int, int]:
    """Collect ended children, adopted ones included; return their exit codes by process id."""
    codes = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return codes


def living() -> list[psutil.Process]:
    """Return this process's descendants that run; orphans among them if it is a subreaper."""
    return [process for process in psutil.Process().children(recursive=True) if runs(process)]


def prctl(option: int, value: int) -> None:
    """Set what becomes of processes when others end (``man 2 prctl``)."""
    ctypes.CDLL(None).prctl(option, value)


def spawn(order: Order, env: dict[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process in a session of its own; it is killed if this supervisor is.

    Returns the process and the descriptor that its output is read from.
    """
    output, sink = os.pipe2(os.O_CLOEXEC)
    try:
        child = subprocess.Popen(
            order.argv,
            env=env,
            cwd=order.cwd,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    finally:
        os.close(sink)
    return child, output


def runs(process: psutil.Process) -> bool:
    """Tell whether a process is there and not merely waiting to be reaped."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def is_resource_tracker(process: psutil.Process) -> bool:
    """Tell whether this is multiprocessing's helper, which ignores TERM until its parent ends."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    return True


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill what is still there of ``processes``."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def answer(reply: int, told: Mapping[str, Any]) -> None:
    """Tell the job that ordered the process; it may be gone, and the next one finds it then."""
    with contextlib.suppress(BrokenPipeError):
        os.write(reply, json.dumps(told).encode())
    os.close(reply)


def changed(base: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return ``base`` with ``changes`` made; None removes a variable."""
    both = {**base, **changes}
    return {name: value for name, value in both.items() if value is not None}


def main() -> None:
    """Run a supervisor: an `Order` on stdin; on stdout the state of what runs, or an error."""
    order = Order(**json.load(sys.stdin))
    if os.fork():
        os._exit(0)  # the job is not our parent, and need not reap us
    reply = os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(quiet, 1)
    with locked(Path(order.home) / "alive"):  # by both processes: until the last of them ends
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        supervisor = os.fork()
        if supervisor:
            os.close(reply)
            os.waitpid(supervisor, 0)
            kill_what_is_left()
        else:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            Supervisor(order).run(reply)


def kill_what_is_left() -> None:
    """Kill all descendants, and return when they are gone (or can't be killed)."""
    give_up_at = time.monotonic() + KILLED_S
    while left := living():
        if time.monotonic() > give_up_at:
            return
        kill(left)
        time.sleep(0.02)
        reaped()


if __name__ == "__main__":
    main()
