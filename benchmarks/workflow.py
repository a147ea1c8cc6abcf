"""How long the workflow takes: the default config, a second run, one more level, from nothing.

    python benchmarks/workflow.py [--from-nothing]

Runs in a temporary copy of the project.  Engine environments are those of ``BRINGUP_CACHE`` or
``.cache``, made beforehand if need be; ``--from-nothing`` times a run with an empty cache too.
Memory is that of the workflow's own processes: Snakemake, its jobs, supervisors; neither servers
nor the engines' own processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from project import PROJECT, Copy

MIB = 1 << 20
TARGETS = {"default": 240.0, "second": 5.0, "one more level": 90.0, "from nothing": 720.0}
"""Seconds on two cores."""


class Memory:
    """The largest sum of what the workflow's own processes held at one time, in MiB."""

    def __init__(self) -> None:
        self.peak = 0.0
        self._ended = threading.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[Memory]:
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        try:
            yield self
        finally:
            self._ended.set()
            watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self.peak = max(self.peak, sum(map(_own_mib, psutil.Process().children(True))))


def _own_mib(process: psutil.Process) -> float:
    """Return the memory that a process shares with no other, if it runs the workflow's Python."""
    with contextlib.suppress(psutil.Error, OSError):
        if process.cmdline()[:1] == [sys.executable]:
            return float(process.memory_full_info().uss / MIB)
    return 0.0


def timed(name: str, copy: Copy, cache: Path) -> None:
    """Run to the report once, and print how long it took against the target."""
    start = time.monotonic()
    with Memory().watched() as memory:
        done = copy.snakemake("results/report.md", timeout_s=3600, BRINGUP_CACHE=str(cache))
    seconds = time.monotonic() - start
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    print(f"| {name} | {seconds:.1f} | {TARGETS[name]:g} | {memory.peak:.0f} |", flush=True)


def main() -> None:
    """Print a table of seconds and MiB."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from-nothing", action="store_true")
    given = parser.parse_args()
    cache = Path(os.environ.get("BRINGUP_CACHE") or PROJECT / ".cache").absolute()
    print("| run | seconds | target | own memory, MiB |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="bringup-bench-") as folder:
        if given.from_nothing:
            timed("from nothing", _copy(Path(folder, "nothing")), Path(folder, "cache"))
        copy = _copy(Path(folder, "copy"))
        engines = [f"results/engines/{name}/engine.json" for name in ("stock", "patched")]
        copy.snakemake(*engines, timeout_s=3600, BRINGUP_CACHE=str(cache))
        copy.snakemake(*engines, "--delete-all-output", BRINGUP_CACHE=str(cache))
        timed("default", copy, cache)
        timed("second", copy, cache)
        copy.edit("config/experiments.yaml", "concurrency: [1, 4],", "concurrency: [1, 2, 4],")
        timed("one more level", copy, cache)


def _copy(home: Path) -> Copy:
    home.mkdir()
    return Copy(home)


if __name__ == "__main__":
    main()
