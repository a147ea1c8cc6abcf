"""The machine: what it is (``hardware.json``), and whether it is enough for an experiment.

The fingerprint holds what stays the same from one run to the next; what changes by itself (free
memory, clocks, who is on a GPU) is :func:`live` and belongs to ``server.json``.
NVIDIA GPUs are read through NVML; a machine without NVML is a normal case, a CPU host.
"""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pynvml
import yaml

from bringup.artifact import Document, document

SCHEMA = "hardware/1"
GIB = 1 << 30
CPU = "cpu"

CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "amx_tile")
"""CPU features that decide which of SGLang's CPU paths can run."""

SUPPORTED = "NVIDIA GPUs of compute capability 7.5 or newer, or no GPU at all"

_NO_GPUS: Document = {"gpus": [], "links": [], "driver": None, "cuda": None}

_P2P_READ = 0
"""``NVML_P2P_CAPS_INDEX_READ``; pynvml's own is a tuple, by a stray comma (nvidia-ml-py 13.615.71),
which NVML's function can't take."""

_LINK_PATHS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "same board",
    pynvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "several PCIe switches",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PCIe host bridge",
    pynvml.NVML_TOPOLOGY_NODE: "one NUMA node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "across NUMA nodes",
}


def fingerprint(override: Mapping[str, Any] | None = None) -> Document:
    """Return ``hardware.json``: this machine, or the one that the config describes.

    Args:
        override: the config's ``hardware:`` section, ``{gpus: {count, name, capability,
            memory_gib}}`` or ``{gpus: [such, …]}``; ``{gpus: []}`` is a machine without a GPU.

    Raises:
        ValueError: the description contradicts itself or names a GPU that is not supported.
    """
    found = {**_NO_GPUS, "gpus": _described(override)} if override else _found()
    return document(
        SCHEMA,
        described=bool(override),
        architecture=_architecture(found["gpus"]),
        **found,
        unsupported=[] if override else _unsupported_accelerators(),
        cpu=_cpu(),
        ram_gib=_ram_gib(),
    )


def architecture(capability: str) -> str:
    """Return how SGLang's issues and this project name a compute capability: 12.0 is sm120."""
    return "sm" + capability.replace(".", "")


def screen(requires: Mapping[str, Any], hardware: Document) -> str | None:
    """Say in words why ``hardware`` is not what an experiment ``requires``, or None if it is.

    Args:
        requires: ``{gpus: 4, gpu_memory_gib: 80, capability: "9.0", ram_gib: 64}``, each optional;
            ``capability`` is the least one, or a list of those that will do.
        hardware: a fingerprint.
    """
    wanted = int(requires.get("gpus", 1 if {"gpu_memory_gib", "capability"} & set(requires) else 0))
    fitting = [gpu for gpu in hardware["gpus"] if _fits(gpu, requires)]
    if len(fitting) < wanted:
        return f"needs {_wish(wanted, requires)}; {_has(hardware)}"
    ram = requires.get("ram_gib")
    if ram and hardware["ram_gib"] < ram:
        return f"needs {ram:g} GiB of RAM; this machine has {hardware['ram_gib']:g}"
    return None


def live(uuids: list[str] | None = None) -> Document:
    """Return the state of this machine now: free memory, power limit, clocks, processes, disk.

    Args:
        uuids: only these GPUs; None is all.

    A figure that the driver does not give is None.
    """
    gpus = []
    with _nvml() as handles:
        for handle in handles:
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            if uuids is None or uuid in uuids:
                gpus.append({"uuid": uuid, **_state(handle)})
    disk = psutil.disk_usage(str(Path.cwd()))
    return {
        "gpus": gpus,
        "ram_available_gib": _gib(psutil.virtual_memory().available),
        "disk_free_gib": _gib(disk.free),
    }


# --- what is there -------------------------------------------------------------------------------


def _found() -> Document:
    """Return the GPUs that this process may use, their links, and the driver's versions."""
    with _nvml() as handles:
        gpus = [_asked(_gpu, handle) for handle in handles]
        chosen = [
            place for place, gpu in enumerate(gpus) if gpu and _is_visible(place, gpu["uuid"])
        ]
        if not chosen:
            return _NO_GPUS
        cuda = _asked(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return {
            "gpus": [gpus[place] for place in chosen],
            "links": _links([handles[place] for place in chosen]),
            "driver": _text(_asked(pynvml.nvmlSystemGetDriverVersion)),
            "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        }


@contextmanager
def _nvml() -> Iterator[list[Any]]:
    """Yield the handles of all GPUs that answer; none where NVML is absent or fails."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield []
        return
    try:
        places = range(_asked(pynvml.nvmlDeviceGetCount) or 0)
        handles = [_asked(pynvml.nvmlDeviceGetHandleByIndex, place) for place in places]
        yield [handle for handle in handles if handle is not None]
    finally:
        pynvml.nvmlShutdown()


def _gpu(handle: Any) -> Document:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return {
        "name": _text(pynvml.nvmlDeviceGetName(handle)),
        "capability": f"{major}.{minor}",
        "memory_gib": _gib(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
    }


def _is_visible(place: int, uuid: str) -> bool:
    """Say whether ``CUDA_VISIBLE_DEVICES`` leaves a GPU to this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return True
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    return any(entry == str(place) or uuid.startswith(entry) for entry in entries)


def _links(handles: list[Any]) -> list[Document]:
    """Return how each pair of GPUs is joined; GPUs are numbered as in ``gpus``."""
    links = []
    for one, first in enumerate(handles):
        for other in range(one + 1, len(handles)):
            second = handles[other]
            common = _asked(pynvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
            peer = _asked(pynvml.nvmlDeviceGetP2PStatus, first, second, _P2P_READ)
            nvlink = _asked(
                pynvml.nvmlDeviceGetP2PStatus, first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK
            )
            links.append(
                {
                    "gpus": [one, other],
                    "path": _LINK_PATHS.get(common),
                    "nvlink": None if nvlink is None else nvlink == pynvml.NVML_P2P_STATUS_OK,
                    "peer_access": None if peer is None else peer == pynvml.NVML_P2P_STATUS_OK,
                }
            )
    return links


def _state(handle: Any) -> Document:
    memory = _asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
    power = _asked(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    running = _asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return {
        "free_gib": None if memory is None else _gib(memory.free),
        "power_limit_w": None if power is None else round(power / 1000),
        "sm_clock_mhz": _asked(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "sm_clock_max_mhz": _asked(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "temperature_c": _asked(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        "throttled_by": _asked(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        "processes": sorted(process.pid for process in running or []),
    }


def _asked(question: Any, *arguments: Any) -> Any:
    """Ask NVML; None where the GPU or the driver does not know the question."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _unsupported_accelerators() -> list[str]:
    """Return accelerators of this machine that bringup cannot use, by the devices they show."""
    devices = {"/dev/kfd": "AMD (ROCm)", "/dev/accel": "Intel or Habana", "/dev/davinci0": "Ascend"}
    return [maker for device, maker in devices.items() if Path(device).exists()]


def _cpu() -> Document:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    return {
        "model": model[1].strip() if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "flags": [flag for flag in CPU_FLAGS if flag in present],
    }


def _ram_gib() -> float:
    """Return the RAM that this process can have: the machine's, or its container's limit."""
    total = psutil.virtual_memory().total
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):
        limit = total
    return _gib(min(total, limit))


# --- what is described ---------------------------------------------------------------------------


def _described(override: Mapping[str, Any]) -> list[Document]:
    unknown = sorted(set(override) - {"gpus"})
    if unknown:
        raise ValueError(f"hardware: unknown key {unknown[0]!r}; it takes gpus")
    groups = override.get("gpus", [])
    groups = [groups] if isinstance(groups, Mapping) else groups
    if not isinstance(groups, list):
        raise ValueError(
            f"hardware.gpus: {groups!r} is no description; write "
            '{count: 8, name: RTX PRO 6000, capability: "12.0", memory_gib: 95.6}'
        )
    return [gpu for place, group in enumerate(groups) for gpu in _described_group(group, place)]


def _described_group(group: Any, place: int) -> list[Document]:
    where = f"hardware.gpus[{place}]"
    if not isinstance(group, Mapping):
        raise ValueError(f"{where}: {group!r} is no mapping of count, name, capability, memory_gib")
    unknown = sorted(set(group) - {"count", "name", "capability", "memory_gib"})
    if unknown:
        raise ValueError(
            f"{where}: unknown key {unknown[0]!r}; it takes count, name, capability, memory_gib"
        )
    name = str(group.get("name", "GPU"))
    count = group.get("count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"{where}.count: {count!r} is not a number of GPUs (1 or more)")
    gpu = {
        "name": name,
        "capability": _described_capability(group, name, where),
        "memory_gib": _described_memory(group, name, where),
        "uuid": None,
    }
    return [dict(gpu) for _ in range(count)]


def _described_capability(group: Mapping[str, Any], name: str, where: str) -> str:
    if re.search(r"(?i)\b(amd|instinct|mi\d{2,3}x?|radeon|intel|gaudi|arc|ascend|tpu)\b", name):
        raise ValueError(f"{where}: {name} is not supported; supported are {SUPPORTED}")
    known = _known(name)
    given = group.get("capability")
    if given is None:
        if known is None:
            raise ValueError(f'{where}: add capability ("9.0"): {name!r} is not a GPU known here')
        return str(known["capability"])
    text = str(given) if "." in str(given) else f"{given}.0"
    if not re.fullmatch(r"\d{1,2}\.\d", text):
        raise ValueError(
            f'{where}.capability: {given!r} is no NVIDIA compute capability ("9.0", "12.0"); '
            f"supported are {SUPPORTED}"
        )
    if known and known["capability"] != text:
        raise ValueError(
            f"{where}: {name} has compute capability {known['capability']}, not {text} "
            f"({_gpus_file()['source']})"
        )
    return text


def _described_memory(group: Mapping[str, Any], name: str, where: str) -> float:
    known = _known(name)
    given = group.get("memory_gib")
    if given is None:
        if known is None or len(known["memory_gib"]) > 1:
            raise ValueError(f"{where}: add memory_gib, the memory of one {name}")
        return float(known["memory_gib"][0])
    if not isinstance(given, int | float) or isinstance(given, bool) or given <= 0:
        raise ValueError(f"{where}.memory_gib: {given!r} is not a size in GiB")
    sizes = known["memory_gib"] if known else []
    if sizes and not any(0.85 * size <= given <= 1.1 * size for size in sizes):
        one_of = " or ".join(f"{size:g}" for size in sizes)
        raise ValueError(f"{where}: one {name} has {one_of} GiB, not {given:g}")
    return round(float(given), 1)


def _known(name: str) -> Document | None:
    """Return the row of the GPU that ``name`` contains as words, the longest name first."""
    rows = sorted(_gpus_file()["gpus"], key=lambda row: -len(row["name"]))
    words = re.compile(r"[\s_-]+").sub
    plain = f" {words(' ', name).lower()} "
    return next((row for row in rows if f" {row['name'].lower()} " in plain), None)


@cache
def _gpus_file() -> Document:
    text = Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8")
    loaded: Document = yaml.safe_load(text)
    return loaded


# --- words ---------------------------------------------------------------------------------------


def _architecture(gpus: list[Document]) -> str:
    """Return the architecture of most of the GPUs (the first of equals), or ``cpu``."""
    counted = Counter(gpu["capability"] for gpu in gpus)
    return architecture(counted.most_common(1)[0][0]) if counted else CPU


def _fits(gpu: Document, requires: Mapping[str, Any]) -> bool:
    asked = requires.get("capability")
    if isinstance(asked, list):
        capable = gpu["capability"] in [str(each) for each in asked]
    else:
        capable = asked is None or float(gpu["capability"]) >= float(asked)
    return capable and gpu["memory_gib"] >= float(requires.get("gpu_memory_gib", 0))


def _wish(count: int, requires: Mapping[str, Any]) -> str:
    parts = []
    if "gpu_memory_gib" in requires:
        parts.append(f"of at least {requires['gpu_memory_gib']:g} GiB")
    asked = requires.get("capability")
    if isinstance(asked, list):
        parts.append("of compute capability " + " or ".join(str(each) for each in asked))
    elif asked is not None:
        parts.append(f"of compute capability {asked} or newer")
    each = " each" if count > 1 and parts else ""
    return " ".join([f"{count} GPU{'s' if count > 1 else ''}", *parts]) + each


def _has(hardware: Document) -> str:
    whose = "the machine of the config" if hardware["described"] else "this machine"
    if not hardware["gpus"]:
        others = hardware["unsupported"]
        seen = f" ({', '.join(others)} found; supported are {SUPPORTED})" if others else ""
        return f"{whose} has none{seen}"
    counted = Counter(
        (gpu["name"], gpu["memory_gib"], gpu["capability"]) for gpu in hardware["gpus"]
    )
    return f"{whose} has " + " and ".join(
        f"{count} × {name} ({memory:g} GiB, {capability})"
        for (name, memory, capability), count in counted.items()
    )


def _gib(size: int) -> float:
    return round(size / GIB, 1)


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
