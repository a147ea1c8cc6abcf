"""Time metadata and detect over 46 shards and 100,000 tensors on the local disk.

``python benchmarks/detect.py [--rounds N]`` prints the time and the peak memory of a fresh process
(imports included), beside what parsing the same headers with ``json`` alone takes.  Exit code 1 if
the limits, 2 s and 300 MiB, are not kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT / "tests/unit"))

import deepseek_v4  # noqa: E402

SECONDS, MIB = 2.0, 300

EXPERTS = 190
"""Experts a layer: with their four tensors a matrix, 43 layers come to about 100,000 tensors."""

DETECT = """
import sys
from bringup import formats
formats.describe(sys.argv[1])
"""
BARE = """
import json, sys
from pathlib import Path
for path in Path(sys.argv[1]).glob("*.safetensors"):
    with path.open("rb") as file:
        json.loads(file.read(int.from_bytes(file.read(8), "little")))
"""


@dataclass
class Run:
    """What a process took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def timed(program: str, folder: Path) -> Run:
    """Run ``program`` on ``folder`` in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            env={**os.environ, "BRINGUP_CACHE": cache},
        )
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit("the program failed")
    return Run(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def main() -> int:
    """Make the checkpoint, run both programs in turn, print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    config = {**deepseek_v4.CONFIG, "quantization_config": deepseek_v4.NVFP4}
    with tempfile.TemporaryDirectory() as folder:
        deepseek_v4.write_checkpoint(Path(folder), "nvfp4", config, each=EXPERTS)
        count = sum(len(shard) for shard in deepseek_v4.shards("nvfp4", each=EXPERTS))
        runs = [(timed(DETECT, Path(folder)), timed(BARE, Path(folder))) for _ in range(rounds)]
    print(f"46 shards, {count:,} tensors, {rounds} rounds, medians")
    for name, each in zip(("detect", "json alone"), zip(*runs, strict=True), strict=True):
        wall, cpu, peak = (
            statistics.median(getattr(run, field) for run in each)
            for field in ("wall_s", "cpu_s", "peak_mib")
        )
        print(f"{name:10}  {wall:.2f} s  (CPU {cpu:.2f} s)  {peak:.0f} MiB")
    ratio = statistics.median(ours.cpu_s / bare.cpu_s for ours, bare in runs)
    print(f"CPU, detect : json alone = {ratio:.1f}")
    kept = all(ours.wall_s <= SECONDS and ours.peak_mib <= MIB for ours, _ in runs)
    print(f"limits ({SECONDS} s, {MIB} MiB): {'kept' if kept else 'NOT kept'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
