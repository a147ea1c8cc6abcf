"""Watch the GPUs of a server during a run: power, clocks, throttling, and whose processes run.

Energy is the integral of power over the run's own window (trapezoids between samples) and counts
only where samples cover all of it; a sensor that fell silent gives no figure instead of a low one.
The rules are InferenceX's (utils/aggregate_power.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bringup import stats

INTERVAL_S = 0.5

LONGEST_GAP_S = 2.0
"""Samples further apart than this leave a hole in which anything may have happened."""

SLOWED = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "power brake",
}
"""NVML's bit of a clock event reason → in words (nvml.h, nvmlClocksEventReasons); the bits of an
idle GPU and of settings that its owner chose are not among them."""


@dataclass(frozen=True)
class Sample:
    """One look at one GPU: seconds on the monotonic clock, watts, %, MiB, MHz, NVML's bits."""

    time_s: float
    power_w: float
    utilisation: int
    memory_mib: int
    clock_mhz: int
    reasons: int
    processes: frozenset[int]


Reader = Callable[[str], Sample]
"""Reads one GPU, by UUID; raises OSError where that is not possible at the moment."""


@dataclass
class Watch:
    """Samples of each GPU (UUID → samples in order) of one run."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)


@contextmanager
def watching(
    gpus: Sequence[str], read: Reader, *, interval_s: float = INTERVAL_S
) -> Iterator[Watch]:
    """Sample ``gpus`` from the block's start to its end, each at least at both."""
    watch = Watch({gpu: [] for gpu in gpus})
    over = threading.Event()

    def look() -> None:
        for gpu in gpus:
            try:
                watch.samples[gpu].append(read(gpu))
            except OSError:
                continue  # the hole is seen in the samples

    def keep_looking() -> None:
        while not over.wait(interval_s):
            look()

    look()
    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
        look()


def figures(watch: Watch, start_s: float, end_s: float, output_tokens: int) -> dict[str, Any]:
    """Return what the GPUs did between two times on the monotonic clock.

    Args:
        watch: samples from before ``start_s`` to after ``end_s``.
        start_s: first send.
        end_s: last token.
        output_tokens: for energy per token.

    Returns:
        Summed over the GPUs: ``power_w``, ``energy_j`` and ``joules_per_output_token`` (None
        unless ``power_valid``; ``power_invalid`` says why not).
        The largest ``memory_mib``, the mean ``utilisation`` and ``clock_mhz``.
        ``slowed``: share of the samples with each reason for lower clocks.  ``newcomers``:
        processes that came to these GPUs meanwhile.
    """
    inside = [
        sample
        for samples in watch.samples.values()
        for sample in samples
        if start_s <= sample.time_s <= end_s
    ]
    invalid = _hole(watch, start_s, end_s)
    energy, window = None, end_s - start_s
    if invalid is None:
        energy = sum(energy_j(each, start_s, end_s) for each in watch.samples.values())
    return {
        "power_valid": invalid is None,
        "power_invalid": invalid,
        "power_w": energy / window if energy is not None and window > 0 else None,
        "energy_j": energy,
        "joules_per_output_token": energy / output_tokens
        if energy is not None and output_tokens
        else None,
        "memory_mib": max((sample.memory_mib for sample in inside), default=None),
        "utilisation": stats.mean([each.utilisation for each in inside]) if inside else None,
        "clock_mhz": stats.mean([each.clock_mhz for each in inside]) if inside else None,
        "slowed": _slowed(inside),
        "newcomers": _newcomers(watch),
    }


def mean_power_w(watch: Watch) -> float | None:
    """Return the watts of all GPUs together, None where one was not looked at."""
    power = [[sample.power_w for sample in samples] for samples in watch.samples.values()]
    return sum(map(stats.mean, power)) if power and all(power) else None


def _newcomers(watch: Watch) -> int:
    """Count processes that the first look at a GPU did not see.

    Which processes are the server's is not asked: inside a container NVML tells the host's ids.
    """
    found = set()
    for gpu, samples in watch.samples.items():
        if samples:
            later = {pid for sample in samples for pid in sample.processes}
            found |= {(gpu, pid) for pid in later - samples[0].processes}
    return len(found)


def energy_j(samples: Sequence[Sample], start_s: float, end_s: float) -> float:
    """Return the joules of one GPU between two times, power taken as linear between samples."""
    total = 0.0
    for before, after in pairwise(samples):
        left, right = max(before.time_s, start_s), min(after.time_s, end_s)
        if right > left:
            total += (
                (right - left) * (_power(before, after, left) + _power(before, after, right)) / 2
            )
    return total


def _power(before: Sample, after: Sample, time_s: float) -> float:
    share = (time_s - before.time_s) / (after.time_s - before.time_s)
    return before.power_w + share * (after.power_w - before.power_w)


def _hole(watch: Watch, start_s: float, end_s: float) -> str | None:
    """Say why the samples do not cover the window, or None."""
    if not watch.samples:
        return "no GPU was watched"
    for gpu, samples in watch.samples.items():
        times = [sample.time_s for sample in samples]
        if not times or times[0] > start_s or times[-1] < end_s:
            return f"{gpu}: samples do not reach from the first send to the last token"
        gap = max((b - a for a, b in pairwise(times)), default=0.0)
        if gap > LONGEST_GAP_S:
            return f"{gpu}: {gap:.1f} s without a sample"
    return None


def _slowed(samples: Sequence[Sample]) -> dict[str, float]:
    shares = {
        words: sum(bool(sample.reasons & bit) for sample in samples) / len(samples)
        for bit, words in SLOWED.items()
        if samples
    }
    return {words: round(share, 4) for words, share in shares.items() if share}


def nvml_reader() -> Reader | None:
    """Return what reads NVIDIA GPUs through NVML, None on a machine without it."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None

    def read(gpu: str) -> Sample:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
            return Sample(
                time_s=time.monotonic(),
                power_w=pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                utilisation=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
                memory_mib=pynvml.nvmlDeviceGetMemoryInfo(handle).used >> 20,
                clock_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                reasons=pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
                processes=frozenset(
                    each.pid for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                ),
            )
        except pynvml.NVMLError as error:
            raise OSError(f"GPU {gpu}: {error}") from None

    return read
