"""What the workflow adds to a sweep: its wall time over that of the same load sent from a shell.

    python benchmarks/overhead.py

On one server, kept running by this program: the points of a sweep through Snakemake (its start,
the jobs, the questions before, during and after each level, the checks), then the same runs of the
same load client one after the other, with the same warm-ups and nothing else.  What is added is the
same however long a repeat lasts, so the ratio depends on ``--seconds`` (``sweep.min_seconds``): the
target of 1.05 is meant for its default, 60, which takes 13 minutes, and only that is written to
docs/overhead.json and docs/overhead.md.  The load's own time stands beside both wall times: a
machine that was faster during one of them shows there.  Needs an engine environment made before
(``BRINGUP_CACHE``, ``.cache``).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bringup import artifact, paths, session
from bringup.endpoint import Endpoint
from bringup.load import clients, records
from bringup.load.workload import Job, Workload
from project import Copy

LEVELS, REPEATS = (1, 4), 3
DEFAULT_S = 60.0
FOLDER = "results/experiments/one"
PROJECT = Path(__file__).resolve().parents[1]
DOCUMENT = PROJECT / "docs" / "overhead.json"

PAGE = """\
# What the workflow adds to a sweep

Written by `benchmarks/overhead.py`; do not edit. {date}, revision {revision}, {cores} cores, load
{load_average_before}: real SGLang on the CPU, C = {levels}, {repeats} repeats of {min_seconds:g} s,
the default length of a repeat.

| | wall time s | of it load s |
| --- | --- | --- |
| through the workflow: its start, jobs, gates, checks | {workflow_s} | {workflow_load_s} |
| the same runs of the client alone, from a shell | {by_hand_s} | {by_hand_load_s} |

**Ratio of wall times: {ratio}** (target: 1.05), or {ratio_at_equal_load} had the load itself taken
as long both times: {added_to_each_point_s} s are added to each point. They are Snakemake's start,
shared by all points, the start of a job, and the questions before, within and after the load, so
they depend on how fast the server answers; how long a repeat lasts they do not depend on.
"""


def config(seconds: float) -> str:
    """Return the config of one experiment."""
    sweep = {
        "concurrency": list(LEVELS),
        "input_tokens": 64,
        "output_tokens": 16,
        "repeats": REPEATS,
        "min_seconds": seconds,
    }
    entry = {
        "checkpoint": "small",
        "engine": "stock",
        "server": {
            "max-total-tokens": 8192,
            "max-running-requests": 16,
            "mem-fraction-static": 0.3,
        },
        "env": {"OMP_NUM_THREADS": 1},
        "kernels": False,
        "sweep": sweep,
    }
    return yaml.safe_dump(
        {
            "checkpoints": {"small": {"path": "resources/arithmetic-moe/bf16"}},
            "engines": {"stock": {"version": "0.5.23"}},
            "experiments": {"one": entry},
        }
    )


def run(*targets: str) -> float:
    """Make ``targets`` through the workflow, here; return the seconds that it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *targets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
    return time.monotonic() - began


def by_hand(
    endpoint: Endpoint, model: str, points: list[artifact.Document], folder: Path
) -> tuple[float, float]:
    """Send what the points sent; return the seconds that it took, and those of the load in it."""
    load_s, began = 0.0, time.monotonic()
    for point in points:
        asked = point["workload"]
        load = Workload(
            asked["concurrency"],
            asked["input_tokens"],
            asked["output_tokens"],
            asked["min_seconds"],
        )
        counts = [load.warm_up_requests(), *(each["requests"] for each in point["repeats"])]
        for number, count in enumerate(counts):
            endpoint.post("/flush_cache", timeout_s=30)
            job = Job(load, endpoint.url, model, count, seed=number)
            clients.direct(job, folder / "records.json")
            load_s += lasted(folder / "records.json")
    return time.monotonic() - began, load_s


def lasted(output: Path) -> float:
    """Return the seconds from a run's first send to its last token."""
    run = records.read(output)
    return run.end_s - run.start_s


def measured(seconds: float) -> dict[str, Any]:
    """Return both wall times and what is added to each point; works in the current folder."""
    load = round(os.getloadavg()[0], 1)
    points = [f"{FOLDER}/points/c{level}.json" for level in LEVELS]
    run(f"{FOLDER}/weights.json")
    plan, weights = (artifact.read(f"{FOLDER}/{name}.json") for name in ("plan", "weights"))
    build = artifact.read("results/engines/stock/engine.json")
    folder = Path(FOLDER).absolute()
    with session.of(plan, weights, build, folder=folder) as boot:
        first = boot.id  # it stays up for the workflow, and after it
    run(f"{FOLDER}/probe.json")
    through = run(*points)
    with session.of(plan, weights, build, folder=folder) as boot:
        if boot.id != first:
            raise SystemExit("the server was started again in between: nothing can be said")
        found = [artifact.read(point) for point in points]
        model = str(paths.actual(weights["snapshot"]))
        alone, load_alone = by_hand(boot.endpoint, model, found, folder)
    session.retire(plan, weights)
    load_through = sum(map(lasted, folder.glob("logs/c*.records.json")))
    added = (through - load_through - (alone - load_alone)) / len(points)
    return {
        "cores": os.cpu_count(),
        "load_average_before": load,
        "levels": ", ".join(map(str, LEVELS)),
        "repeats": REPEATS,
        "min_seconds": seconds,
        "workflow_s": round(through, 1),
        "workflow_load_s": round(load_through, 1),
        "by_hand_s": round(alone, 1),
        "by_hand_load_s": round(load_alone, 1),
        "ratio": round(through / alone, 3),
        "ratio_at_equal_load": round(1 + len(points) * added / alone, 3),
        "added_to_each_point_s": round(added, 1),
    }


def main() -> None:
    """Print the ratio and what it consists of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=DEFAULT_S)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(measured(given.seconds)))
        return
    with tempfile.TemporaryDirectory(prefix="bringup-overhead-") as scratch:
        copy = Copy(Path(scratch))
        (copy.home / "config/experiments.yaml").write_text(config(given.seconds))
        inside = {  # the same library as the workflow's, so that both mean the same server
            **os.environ,
            "PYTHONPATH": str(copy.home / "src"),
            "BRINGUP_CACHE": str(paths.cache().absolute()),
            "CUDA_VISIBLE_DEVICES": "",
        }
        command = [sys.executable, __file__, "--inside", "--seconds", str(given.seconds)]
        done = subprocess.run(command, cwd=copy.home, env=inside, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    found = {"date": datetime.date.today().isoformat(), "revision": revision()}
    found |= json.loads(done.stdout)
    print(json.dumps(found, indent=1))
    if given.seconds == DEFAULT_S:
        DOCUMENT.write_text(json.dumps(found, indent=1) + "\n")
        DOCUMENT.with_suffix(".md").write_text(PAGE.format(**found))


def revision() -> str:
    """Return the short name of the commit that is measured."""
    asked = ["git", "-C", str(PROJECT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
