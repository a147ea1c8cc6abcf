"""What the workflow adds to a sweep: its wall time over that of the same load sent from a shell.

    python benchmarks/overhead.py [--seconds 60]

On one server, kept running by this program: the points of a sweep through Snakemake (its start,
the jobs, the questions before, during and after each level, the checks), then the same runs of the
same load client one after the other, with the same warm-ups and nothing else.  What is added is the
same however long a repeat lasts, so the ratio depends on ``--seconds`` (``sweep.min_seconds``): the
target of 1.05 is meant for its default, 60.  With less the ratio for 60 s is worked out from the
seconds added.  Needs an engine environment made before (``BRINGUP_CACHE``, ``.cache``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bringup import artifact, paths, session
from bringup.endpoint import Endpoint
from bringup.load import clients
from bringup.load.workload import Job, Workload
from project import Copy

LEVELS, REPEATS = (1, 4), 3
DEFAULT_S = 60.0
FOLDER = "results/experiments/one"


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


def by_hand(endpoint: Endpoint, model: str, points: list[artifact.Document], folder: Path) -> float:
    """Send what the points sent, and return the seconds that it took."""
    began = time.monotonic()
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
    return time.monotonic() - began


def measured(seconds: float) -> dict[str, float]:
    """Return the ratio, and the seconds added to each point; works in the current folder."""
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
        alone = by_hand(boot.endpoint, str(paths.actual(weights["snapshot"])), found, folder)
    session.retire(plan, weights)
    added = (through - alone) / len(points)
    return {
        "min_seconds": seconds,
        "workflow_s": round(through, 1),
        "by_hand_s": round(alone, 1),
        "ratio": round(through / alone, 3),
        "added_to_each_point_s": round(added, 1),
        "ratio_at_60_s": round(1 + added / (REPEATS * DEFAULT_S), 3),
    }


def main() -> None:
    """Print the ratio and what it consists of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=DEFAULT_S)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(measured(given.seconds), indent=1))
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
        raise SystemExit(subprocess.run(command, cwd=copy.home, env=inside).returncode)


if __name__ == "__main__":
    main()
