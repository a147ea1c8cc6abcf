"""Time and size of a report: 1,000 experiments × 6 levels × 3 repeats, or 100,000 points.

    python benchmarks/report.py [1000 | 18520 | …]

Prints one JSON object; exits 1 where a bound is broken: seconds of one core, peak MiB, MB of HTML.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "tests" / "unit"))

from fixtures.report import study  # noqa: E402

from bringup import report  # noqa: E402

LEVELS = (1, 2, 4, 8, 16, 32)
STUDIES = 10
FLAGS = {
    "trust-remote-code": (True, "user", "config"),
    "mem-fraction-static": (0.7, "user", "config"),
    "cuda-graph-max-bs-decode": (32, "user", "config"),
    "context-length": (32768, "user", "config"),
    "max-running-requests": (32, "workflow", "the largest level of the sweep"),
    "kv-cache-dtype": ("fp8_e4m3", "table", "the checkpoint's own scales are for it"),
    "decode-log-interval": (10, "workflow", "the server's own throughput is read there"),
    "enable-metrics": (True, "workflow", "the server's own counts are held against the client's"),
}
"""Flags that a plan has besides those of the made-up one: value, who set it, why."""

BOUNDS = {
    1000: {"cpu_seconds": 20, "peak_mib": 500, "html_mb": 10},
    18520: {"cpu_seconds": 120, "peak_mib": 1536, "html_mb": 10},
}
"""Up to so many experiments: what a report of them may take.  18,520 have 100,008 points."""


def write(folder: Path, experiments: int) -> study.Run:
    """Write a run: nine of ten experiments right and measured, the others refused."""
    dice = random.Random(1)
    run = study.Run(folder)
    run.add("hardware.json", study.HARDWARE)
    for number in range(experiments):
        name = f"nvfp4--engine{number % 7}--backend{number:04}"
        entry = study.entry(name, f"study{number % STUDIES}", "nvfp4", f"engine{number % 7}")
        run.experiments.append(entry)
        plan = study.plan(name, "nvfp4", entry["engine"], "marlin", ("nvfp4", "fp8-block"))
        plan["flags"] += [
            {"flag": flag, "value": value, "by": by, "why": why}
            for flag, (value, by, why) in FLAGS.items()
        ]
        if number % 10 == 9:
            plan |= study.head("plan/1", "refused", study.reason("table", "has no kernels here"))
        run.add(f"experiments/{name}/plan.json", plan)
        if number % 10 != 9:
            measure(run, name, dice)
    return run


def measure(run: study.Run, name: str, dice: random.Random) -> None:
    """Add what follows a plan, down to the points."""
    folder = f"experiments/{name}"
    run.add(f"{folder}/weights.json", {**study.head("weights/1"), "snapshot": "m", "files": []})
    run.add(f"{folder}/server.json", study.server(name, "marlin", "marlin", "confirmed", 400.0))
    run.add(f"{folder}/probe.json", study.probe(name, 25))
    for level in LEVELS:
        speed = level**0.7 * dice.uniform(9, 12)
        repeats = tuple(round(speed * dice.uniform(0.98, 1.02), 2) for _ in range(3))
        document = study.point(name, level, repeats, 200.0 * level, 1000 * level / speed)
        run.add(f"{folder}/points/c{level}.json", document)


def main(experiments: int) -> int:
    """Measure one report in a process of its own, so that its peak memory is its own, too."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = write(folder, experiments)
        listed = {"experiments": run.experiments, "documents": [str(p) for p in run.documents]}
        (folder / "listed.json").write_text(json.dumps(listed), encoding="utf-8")
        measured = subprocess.run(
            [sys.executable, __file__, "--build", scratch],
            check=True,
            capture_output=True,
            text=True,
        )
        result = json.loads(measured.stdout)
        result["html_mb"] = round((folder / "report.html").stat().st_size / 1e6, 1)
        result["markdown_mb"] = round((folder / "report.md").stat().st_size / 1e6, 1)
    result = {"experiments": experiments, "points": len(LEVELS) * experiments * 9 // 10, **result}
    print(json.dumps(result))
    bounds = next((each for most, each in BOUNDS.items() if experiments <= most), {})
    return 0 if all(result[name] <= most for name, most in bounds.items()) else 1


def build(folder: Path) -> None:
    """Build the report of the run in ``folder`` and print what it took."""
    listed = json.loads((folder / "listed.json").read_text(encoding="utf-8"))
    start, cpu = time.perf_counter(), time.process_time()
    report.build(
        experiments=listed["experiments"],
        documents=[Path(path) for path in listed["documents"]],
        output=folder,
    )
    print(
        json.dumps(
            {
                "seconds": round(time.perf_counter() - start, 1),
                "cpu_seconds": round(time.process_time() - cpu, 1),
                "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        build(Path(sys.argv[2]))
    else:
        sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 1000))
