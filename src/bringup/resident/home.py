"""The folder of a background process: what all who deal with it know of it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bringup.artifact import write_text

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


@dataclass(frozen=True)
class Order:
    """What a supervisor is told: a spec with its placeholders filled, and what is this life's own.

    It is handed over through a pipe, not in argv, where everyone could read its secrets.
    """

    home: str
    argv: list[str]
    env: dict[str, str | None]
    cwd: str | None
    grace_s: float
    idle_s: float
    owner: int
    log: str
    notes: dict[str, Any]


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

    def used(self, *, shared: bool, wait: bool = True) -> AbstractContextManager[None]:
        """Use the process, alone or ``shared`` with others; it does not end idle meanwhile.

        Raises:
            BlockingIOError: with ``wait`` false, somebody uses it alone, or at all.
        """
        return locked(self.folder / "use", shared=shared, wait=wait)

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


NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Hold the kernel's lock on ``path``, which is gone when this process is, however it ends.

    Raises:
        BlockingIOError: with ``wait`` false, someone else holds it.
        OSError: the file system of ``path`` has no locks.
    """
    descriptor = _opened(path)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        _lock(descriptor, kind if wait else kind | fcntl.LOCK_NB, path)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """Open a file to lock; on NFS a lock that excludes others wants one that can be written."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
    except PermissionError:  # another user's, which can be locked all the same
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _lock(descriptor: int, kind: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise OSError(
            error.errno,
            f"{path} is on a file system without locks (Lustre: mounted without -o flock; NFS: "
            "without its lock service); set BRINGUP_CACHE to a folder on one that has them",
        ) from None
