"""Background processes that outlive the job which started them, but never their workflow.

A job names what it needs by a `Spec` and enters `running`.  If no process of that name is up, a
detached *supervisor* (this module, run with ``-m``) starts one; later jobs find it there.  State
is kernel locks, dropped however their holder dies, in one folder for each process:

``alive``   held by the supervisor for the whole life of its process
``use``     held by the jobs that are using it; the supervisor takes it when nobody does
``start``   held by a job while it looks whether the process is up and starts it

The supervisor ends its process, and everything which that has started, when nobody has used it
for a while, when it is told to (`Home.stop`), or when the last of its *owners* (the workflows
that asked for it) has ended.  If the supervisor itself is killed, the kernel ends the process.

Linux only: flock, pidfd, ``PR_SET_PDEATHSIG`` and ``PR_SET_CHILD_SUBREAPER`` (``man 2 prctl``).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import hashlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from bringup.artifact import write_text
from bringup.redact import HIDDEN, SECRET_NAME, SHORTEST_VALUE, redacted

TICK_S = 0.2
"""How often a supervisor looks at its locks and owners, and a waiting job at its lock."""

LINGER_S = 1.0
"""How long a process may go on after TERM when all its children have ended.

SGLang 0.5.23's launcher takes 6 s (it waits before looking into why its scheduler has gone), which
every change of servers would cost; the scheduler and its memory are gone after 0.2 s.
"""

KILLED_S = 30.0
"""How long killed processes are waited for (one in the kernel, freeing memory, takes its time)."""

LOGS_KEPT = 5
"""Logs of one name that are kept: the newest, and older ones as ``name.1.log`` and so on."""

NOTE = "[bringup "
"""How lines in a log begin that the supervisor wrote, not the process."""

Cause = Literal["exited", "idle", "stopped", "owner"]
"""Why a process ended: by itself, unused for too long, told to, or its last owner had ended."""


@dataclass(frozen=True)
class Spec:
    """What runs; two jobs with equal specs share one process.

    Attributes:
        name: what people call it; part of its folder's name.
        argv: the command line.  ``{home}`` stands for the process's folder; other placeholders
            are filled with what `start` is given.
        env: variables that differ from the starting job's environment; None removes one.
        cwd: its working directory, or None for the job's.
        grace_s: seconds between TERM and KILL.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str | None] = field(default_factory=dict)
    cwd: str | None = None
    grace_s: float = 30.0

    @property
    def key(self) -> str:
        """Twelve hex digits that stand for the whole spec."""
        canonical = json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class State:
    """What a supervisor publishes about its process.

    Attributes:
        boot: the id of this one life.
        supervisor: the supervisor's process id.
        pid: the process's id, which is also that of its process group and session.
        started: when it was started, by the monotonic clock that all processes of a machine share.
        log: where its output goes.
        notes: what `start` was given to remember (a port, devices).
        ending: why it is ending or has ended, or None while it runs.
        exit_code: once it has ended: its exit code, or minus the number of the signal.
    """

    boot: str
    supervisor: int
    pid: int
    started: float
    log: str
    notes: Mapping[str, Any]
    ending: Cause | None = None
    exit_code: int | None = None


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
    order = {
        "home": str(home.folder),
        "argv": filled(spec.argv, {"home": str(home.folder), **(fill or {})}),
        "env": {**spec.env, **(env or {})},
        "cwd": spec.cwd,
        "grace_s": spec.grace_s,
        "idle_s": idle_s,
        "owner": owner(),
        "log": str(log),
        "notes": dict(notes or {}),
    }
    with (home.folder / "supervisor.log").open("w") as complaints:
        supervisor = subprocess.run(  # it leaves a copy of itself behind, detached
            [sys.executable, "-m", "bringup.resident"],
            input=json.dumps(order),  # not in argv, where everyone could read its secrets
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,
            check=False,
            text=True,
        )
    try:
        answer = json.loads(supervisor.stdout)
    except json.JSONDecodeError:
        complaint = (home.folder / "supervisor.log").read_text(errors="replace")[-2000:]
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


def owner() -> int:
    """Return the process for whose sake this one runs things: its workflow, else itself."""
    return int(os.environ.get("BRINGUP_OWNER") or os.getpid())


def run_folder() -> Path:
    """Return this user's folder for running processes on this machine."""
    named = os.environ.get("BRINGUP_RUN")
    return Path(named or Path(tempfile.gettempdir(), f"sglang-bringup-{os.getuid()}"))


@dataclass(frozen=True)
class Home:
    """The folder of one process: its locks, owners and state."""

    folder: Path

    @classmethod
    def of(cls, spec: Spec) -> Home:
        """Return the home of ``spec``, made if need be.

        Raises:
            PermissionError: somebody else's folder stands where this user's should.
        """
        base = run_folder()
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if base.stat().st_uid != os.getuid():
            raise PermissionError(f"{base} belongs to another user; set BRINGUP_RUN to a folder")
        home = cls(base / f"{spec.name}-{spec.key}")
        (home.folder / "owners").mkdir(mode=0o700, parents=True, exist_ok=True)
        return home

    @classmethod
    def all_live(cls) -> Iterator[tuple[Home, State]]:
        """Yield each process of this user that runs (or is ending) on this machine."""
        for path in sorted(run_folder().glob("*/state.json")):
            home = cls(path.parent)
            with contextlib.suppress(FileNotFoundError):  # just being started anew
                if home.is_alive():
                    yield home, home.state()

    def is_alive(self) -> bool:
        """Tell whether a supervisor is there."""
        try:
            with locked(self.folder / "alive", shared=True, wait=False):
                return False
        except BlockingIOError:
            return True

    def state(self) -> State:
        """Return what the newest supervisor published last."""
        return State(**json.loads((self.folder / "state.json").read_text()))

    def publish(self, state: State) -> None:
        """Make ``state`` what others read, at once and whole."""
        write_text(self.folder / "state.json", json.dumps(dataclasses.asdict(state)))

    def live(self) -> State | None:
        """Return the state of the running process; wait for the end of one that is ending."""
        if self.is_alive():
            state = self.state()
            if state.ending is None:
                return state
            self.wait_for_end()
        return None

    def own(self) -> None:
        """Let the process live as long as this job's workflow does."""
        (self.folder / "owners" / str(owner())).touch()

    @contextlib.contextmanager
    def used(self, *, shared: bool = False) -> Iterator[None]:
        """Hold the process against ending for want of use; without ``shared``, for oneself."""
        with locked(self.folder / "use", shared=shared):
            yield

    def stop(self) -> None:
        """End the process if it runs, and return when all of it is gone."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.state().supervisor, signal.SIGTERM)
            self.wait_for_end()

    def wait_for_end(self) -> None:
        """Return when no supervisor is there (any more)."""
        with locked(self.folder / "alive", shared=True):
            pass


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold the kernel's lock on ``path``.

    Raises:
        BlockingIOError: with ``wait`` false, someone else holds it.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o600)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def rotate(log: Path) -> None:
    """Move an existing ``log`` out of the way: ``x.log`` becomes ``x.1.log``, and so on."""
    log.parent.mkdir(parents=True, exist_ok=True)
    names = [log, *(log.with_suffix(f".{age}{log.suffix}") for age in range(1, LOGS_KEPT))]
    for older, newer in reversed(list(zip(names[1:], names[:-1], strict=True))):
        if newer.exists():
            newer.replace(older)


# The supervisor.


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


class CappedLog:
    """A log file that keeps its head and its tail when its writer floods it.

    Past ``limit`` bytes the middle is dropped, so that ``keep`` bytes at either end stay; it then
    grows to the limit again.  Readers see it replaced as a whole: one that finds it shorter than
    where it left off has missed what was dropped.
    """

    def __init__(self, path: Path, *, limit: int = 64 << 20, keep: int = 16 << 20) -> None:
        self._path = path
        self._limit = limit
        self._keep = keep
        self._file = path.open("a+b", buffering=0)

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        self._file.write(data)
        if self._file.tell() > self._limit:
            self._drop_middle()

    def note(self, text: str) -> None:
        """Append a line of the supervisor's own."""
        self.write(f"{NOTE}{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n".encode())

    def _drop_middle(self) -> None:
        size = self._file.tell()
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with self._file as old:
            new = draft.open("a+b", buffering=0)
            old.seek(0)
            new.write(old.read(self._keep))
            dropped = size - 2 * self._keep
            new.write(f"\n{NOTE}{dropped} bytes were dropped here: too much output]\n".encode())
            old.seek(-self._keep, os.SEEK_END)
            new.write(old.read())
        draft.replace(self._path)
        self._file = new


def pump(stream: int, log: CappedLog, hidden: list[bytes]) -> None:
    """Copy a process's output to its log, line by line, without the ``hidden`` values."""
    rest = b""
    while data := os.read(stream, 1 << 16):
        rest += data
        cut = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
        if len(rest) - cut > 1 << 20:  # no line is that long
            cut = len(rest)
        log.write(without(hidden, rest[:cut]))
        rest = rest[cut:]
    log.write(without(hidden, rest))


def without(hidden: list[bytes], data: bytes) -> bytes:
    """Return ``data`` with every hidden value replaced."""
    for value in hidden:
        data = data.replace(value, HIDDEN.encode())
    return data


def secret_values(argv: list[str], env: Mapping[str, str]) -> list[bytes]:
    """Return the secrets that a process is given, longest first."""
    shown = zip(argv, redacted(argv), strict=True)
    given = {argument.split("=", 1)[-1] for argument, clean in shown if argument != clean}
    named = {value for name, value in env.items() if SECRET_NAME.search(name)}
    values = {value.encode() for value in given | named if len(value) >= SHORTEST_VALUE}
    return sorted(values, key=len, reverse=True)


def spawn(order: Mapping[str, Any], env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own; it ends if this supervisor is killed."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_child_subreaper, set_pdeathsig = 36, 1  # linux/prctl.h
    prctl(set_child_subreaper, 1)  # orphans below the process become children of this one
    return subprocess.Popen(
        order["argv"],
        env=env,
        cwd=order["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: prctl(set_pdeathsig, signal.SIGKILL),
    )


class Supervisor:
    """Starts one process, watches it and ends it."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._home = Home(Path(order["home"]))
        self._order = order
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
        env = changed(os.environ, self._order["env"])
        log = CappedLog(Path(self._order["log"]))
        self._owners = Owners(self._home.folder / "owners", self._order["owner"])
        try:
            self._child = spawn(self._order, env)
        except OSError as error:
            answer(reply, {"error": str(error)})
            return
        boot = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        state = State(
            boot=boot,
            supervisor=os.getpid(),
            pid=self._child.pid,
            started=time.monotonic(),
            log=self._order["log"],
            notes=self._order["notes"],
        )
        self._home.publish(state)
        log.note(f"boot {boot}: {' '.join(redacted(self._order['argv']))}")
        assert self._child.stdout is not None
        hidden = secret_values(self._order["argv"], env)
        output = threading.Thread(
            target=pump, args=(self._child.stdout.fileno(), log, hidden), daemon=True
        )
        output.start()
        answer(reply, dataclasses.asdict(state))
        with contextlib.ExitStack() as held:
            cause = self._watch(held)
            self._home.publish(dataclasses.replace(state, ending=cause))
            left = self._end()
            output.join(timeout=5)
            code = self._child.returncode
            self._home.publish(dataclasses.replace(state, ending=cause, exit_code=code))
            log.note(f"ended ({cause}), exit code {code}")
            if left:
                log.note(f"could not be killed: {left}")

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
                use.enter_context(locked(self._home.folder / "use", wait=False))
            except BlockingIOError:
                last_used = time.monotonic()
            if time.monotonic() - last_used > self._order["idle_s"]:
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
        kill_at = time.monotonic() + self._order["grace_s"]
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
        """Return what still runs of the process and its descendants, adopted orphans included."""
        self._reap()
        return [process for process in psutil.Process().children(recursive=True) if runs(process)]

    def _is_alone(self, living: list[psutil.Process]) -> bool:
        """Tell whether only the process itself is left, but for what ends right after it."""
        others = [process for process in living if process.pid != self._child.pid]
        return len(others) < len(living) and all(map(is_resource_tracker, others))

    def _reap(self) -> None:
        """Collect ended children, so that none stays as a zombie."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self._child.pid:
                    self._child.returncode = os.waitstatus_to_exitcode(status)


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
    """Run a supervisor: an order on stdin, the state (or an error) on stdout."""
    order = json.load(sys.stdin)
    if os.fork():
        os._exit(0)  # the job is not our parent, and need not reap us
    reply = os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(quiet, 1)
    with locked(Path(order["home"]) / "alive"):
        Supervisor(order).run(reply)


if __name__ == "__main__":
    main()
