# ruff: noqa: N802
"""NVML as a machine of several H200s would show it, on one that has none.

Put first on the path, it takes the real module's place. ``SIMULATED_GPUS`` is how many there are.
A fake server holds the memory of those in its ``CUDA_VISIBLE_DEVICES``, and for a while longer, as
drivers do (``SIMULATED_FOLDER`` remembers); on the first GPU is a stranger's process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
STRANGER = 1
"""The id of a process that is not ours."""

LAG_S = 2.0
"""How long a GPU's memory stays in use after the process that held it has ended."""

BYTES = 150_754_820_096


def _real() -> Any:
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    spec = PathFinder.find_spec("pynvml", elsewhere)
    assert spec and spec.loader
    module = module_from_spec(spec)
    ours = sys.modules[__name__]
    sys.modules[__name__] = module  # it adds classes of errors to the module of its name
    spec.loader.exec_module(module)
    sys.modules[__name__] = ours
    return module


_REAL = _real()
globals().update({name: each for name, each in vars(_REAL).items() if not name.startswith("__")})


def nvmlInit() -> None:
    """Find the driver."""


def nvmlShutdown() -> None:
    """Leave it."""


def nvmlDeviceGetCount() -> int:
    return int(os.environ["SIMULATED_GPUS"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetName(index: int) -> str:
    return "NVIDIA H200"


def nvmlDeviceGetUUID(index: int) -> str:
    return f"GPU-{index:08d}-simulated"


def nvmlDeviceGetCudaComputeCapability(index: int) -> tuple[int, int]:
    return 9, 0


def nvmlSystemGetDriverVersion() -> str:
    return "580.95.05"


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return 13010


def nvmlDeviceGetComputeRunningProcesses(index: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid) for pid in _holders(index)]


def nvmlDeviceGetMemoryInfo(index: int) -> SimpleNamespace:
    seen = Path(os.environ["SIMULATED_FOLDER"], nvmlDeviceGetUUID(index))
    if _holders(index):
        seen.touch()
    held = seen.exists() and time.time() - seen.stat().st_mtime < LAG_S
    used = int(0.8 * BYTES) if held else BYTES // 100
    return SimpleNamespace(total=BYTES, used=used, free=BYTES - used)


def _holders(index: int) -> list[int]:
    """Return the processes on a GPU."""
    if index == 0:
        return [STRANGER]
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            serves = any(word.endswith("fake_server.py") for word in process.cmdline())
            visible = process.environ().get("CUDA_VISIBLE_DEVICES", "") if serves else ""
            if nvmlDeviceGetUUID(index) in visible.split(","):
                found.append(process.pid)
    return found


def _unsupported(*_: object) -> None:
    raise _REAL.NVMLError(_REAL.NVML_ERROR_NOT_SUPPORTED)


for _name in dir(_REAL):
    if _name.startswith("nvmlDevice") and globals()[_name] is getattr(_REAL, _name):
        globals()[_name] = _unsupported
