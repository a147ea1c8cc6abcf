"""Devices as slots: each is used by one job at a time, on the whole machine, by whatever user.

A slot is a kernel lock on a file in a folder that all users of the machine share.  A GPU is free
if its lock is, and if nobody's process is on it but those of our own idle servers, which are
stopped when their GPU is wanted.  Without GPUs, the machine's CPU is the one slot.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from bringup.resident import Home, locked
from bringup.serving.errors import Busy

CPU = "cpu"

LOCKS = Path("/tmp/sglang-bringup-locks")
"""Where slots are unless ``BRINGUP_LOCKS`` names another folder: in the one place that all users
and jobs of a machine see, whatever their TMPDIR is."""

IDLE_SHARE = 0.05
"""Share of a GPU's memory that may be in use on a free one: drivers and displays take some.

Needed where processes can't be seen (NVML shows none from within many containers)."""

FREED_S = 60.0
"""How long a stopped server's GPU memory is waited for."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML (the driver's library) shows it now.

    Attributes:
        uuid: its id, as ``CUDA_VISIBLE_DEVICES`` takes it.
        used: share of its memory that is in use.
        processes: ids of the processes that compute on it, as far as they can be seen.
    """

    uuid: str
    used: float
    processes: tuple[int, ...]


def look() -> list[Gpu]:
    """Return the GPUs that this process may use, in the driver's order.

    ``CUDA_VISIBLE_DEVICES`` limits them, as indices (of ``CUDA_DEVICE_ORDER=PCI_BUS_ID``)
    or as UUIDs.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        gpus = [_look_at(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    return allowed(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def allowed(gpus: list[Gpu], names: str | None) -> list[Gpu]:
    """Return those of ``gpus`` that a ``CUDA_VISIBLE_DEVICES`` lets its process see."""
    if names is None:
        return gpus
    visible = {name.strip() for name in names.split(",")} - {""}
    return [
        gpu
        for index, gpu in enumerate(gpus)
        if str(index) in visible or any(gpu.uuid.startswith(name) for name in visible)
    ]


def _look_at(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    used = 0.0
    processes: list[Any] = []
    with contextlib.suppress(pynvml.NVMLError_NotSupported):  # memory shared with the CPU: GB10
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        used = memory.used / memory.total
    with contextlib.suppress(pynvml.NVMLError_NotSupported):  # under WSL, say
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return Gpu(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        used=used,
        processes=tuple(process.pid for process in processes),
    )


def take(count: int, held: contextlib.ExitStack) -> list[str] | None:
    """Lock ``count`` free GPUs (0: the CPU) until ``held`` is closed, rid of our other servers.

    Returns their ids, or None, holding nothing, if there aren't enough free ones now.  GPUs that
    nobody is on come before those from which an idle server of ours must go first.

    Raises:
        Busy: there never will be enough.
    """
    gpus = look()
    if len(gpus) < count:
        raise Busy(f"{count} GPUs are needed, {len(gpus)} are to be seen from here")
    ours = {uuid for _, state in Home.all_live() for uuid in state.notes.get("devices", ())}
    wanted = sorted(free(gpus), key=lambda uuid: uuid in ours) if count else [CPU]
    with contextlib.ExitStack() as locks:
        taken: list[str] = []
        with locked(slot("choice")):  # who needs several gets them all or leaves them to others
            for device in wanted:
                if len(taken) < max(count, 1):
                    with contextlib.suppress(BlockingIOError):
                        locks.enter_context(locked(slot(device), wait=False))
                        taken.append(device)
            if len(taken) < max(count, 1):
                return None
        if not cleared(taken):
            return None
        held.enter_context(locks.pop_all())
    return taken


def take_again(devices: list[str], held: contextlib.ExitStack) -> list[str] | None:
    """Lock just these ``devices``, where a server of ours already is; None if one is in use."""
    with contextlib.ExitStack() as locks:
        for device in sorted(devices):
            try:
                locks.enter_context(locked(slot(device), wait=False))
            except BlockingIOError:
                return None
        held.enter_context(locks.pop_all())
    return devices


def free(gpus: list[Gpu]) -> list[str]:
    """Return the ids of those of ``gpus`` that nobody else is on."""
    residents = {state.pid: state for _, state in Home.all_live()}
    return [
        gpu.uuid
        for gpu in gpus
        if all(_session(pid) in residents for pid in gpu.processes)
        and (
            gpu.used <= IDLE_SHARE
            or any(gpu.uuid in state.notes.get("devices", ()) for state in residents.values())
        )
    ]


def cleared(devices: list[str]) -> bool:
    """Stop our servers on ``devices``, whose locks we hold; tell whether all GPU memory is back."""
    for home, state in Home.all_live():
        if set(devices) & set(state.notes.get("devices", ())):
            home.stop()
    deadline = time.monotonic() + FREED_S
    while any(gpu.used > IDLE_SHARE for gpu in look() if gpu.uuid in devices):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _session(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getsid(pid)
    return None


def slot(device: str) -> Path:
    """Return the file whose lock is the right to use ``device``; any user can lock it.

    Raises:
        OSError: the file is not what such a file must be (a link, say).
    """
    folder = Path(os.environ.get("BRINGUP_LOCKS") or LOCKS)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
    path = folder / f"{device}.lock"
    with contextlib.suppress(FileExistsError):
        # Not O_CREAT alone: in a sticky folder the kernel refuses that for others' files
        # (fs.protected_regular).  Reading suffices to lock.
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        os.fchmod(descriptor, 0o644)
        os.close(descriptor)
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(f"{path} is not a plain file; remove it or set BRINGUP_LOCKS")
    return path
