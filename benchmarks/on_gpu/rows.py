"""What the plan says of each row, against what happens when it is forced.

    python benchmarks/on_gpu/rows.py RESULTS OUT [--rows NAME…] [--deadline-s 300]

RESULTS holds plans of experiments that ``force`` everything (`snakemake … weights` makes them).
Their servers are started side by side on one GPU, which no workflow uses meanwhile: nothing is
timed.  Each is asked the questions, compared with the reference token by token, and profiled.
OUT/rows.json is written anew after each row; rows not reached stay ``not run``.  Those that it says
of what happened to them are not done again, but for the reference, which all are compared with.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from bringup import artifact, evidence, hardware, probes, reference, serving, session
from bringup.config import SUITES
from bringup.resident import Home
from bringup.serving import leasing
from bringup.serving.devices import CPU

CONCURRENCY = 8
"""Requests decoded at once while a profile is taken."""

TEXTS = [
    f"<|im_start|>user\nWhat is {a}{sign}{b}? Answer with the number only.<|im_end|>\n"
    f"<|im_start|>assistant\n{answer}<|im_end|>"
    for a, b in ((17, 23), (48, 91), (63, 12), (85, 34), (99, 99), (10, 57), (72, 38), (26, 64))
    for sign, answer in (("*", a * b), ("+", a + b), ("-", a - b))
]
"""What all servers read, to compare what they take for likely at each token."""

LEAST_S = 20.0
"""A row is not begun any more when less than this is left."""

UNFINISHED = ("not run", "starts")
"""Outcomes of rows that were cut short, or never begun."""


def ordered(planned: Iterable[str], first: Iterable[str]) -> list[str]:
    """Return the rows in the order of ``first``, then what it doesn't name.

    Raises:
        SystemExit: ``first`` names an experiment that there is no plan of.
    """
    planned, first = list(planned), list(first)
    if strangers := sorted({name.partition("@")[0] for name in first} - set(planned)):
        raise SystemExit(f"no plan of {', '.join(strangers)}")
    return [*first, *(name for name in planned if name not in first)]


def untouched(plan: artifact.Document) -> artifact.Document:
    """Return a plan whose backends are all as asked: ``auto`` is left to the build.

    The plan itself says the table's choice outright where it knows a better one.
    """
    added = [flag for flag in plan["flags"] if flag["by"] == "table"]
    argv = list(plan["argv"])
    for flag in added:
        place = argv.index(f"--{flag['flag']}")
        del argv[place : place + 2]
    return {**plan, "argv": argv, "flags": [f for f in plan["flags"] if f not in added]}


def expected(plan: artifact.Document) -> dict[str, Any]:
    """Return what the plan knows of a row's backends: verdict and source by module class."""
    return {
        module: {key: each[key] for key in ("format", "asked", "automatic", "known", "why")}
        for module, each in plan["backend"].items()
    }


def compared(base: reference.Reading, other: reference.Reading) -> dict[str, float]:
    """Return how far predictions are from the reference's, divergences in nats."""
    found = reference.compare(base, other)
    return {
        "positions": found.places,
        "kl_mean": found.mean_kl,
        "kl_p99": found.tail_kl,
        "top1_agreement": found.top1,
    }


class Run:
    """All rows of one run: boots them, and keeps what came of each."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._results, self._out, self._corrupted = given.results, given.out, given.corrupted
        self._began = time.monotonic()
        self._deadline = self._began + given.deadline_s
        self._questions = probes.load(["arithmetic"], SUITES)
        self._reference: reference.Reading | None = None
        self._ready = threading.Event()
        self._reference_name, self._kept = given.reference, given.keep_traces
        self._lock = threading.Lock()
        earlier = given.out / "rows.json"
        self.rows: dict[str, dict[str, Any]] = artifact.read(earlier) if earlier.is_file() else {}
        gpus = hardware.fingerprint()["gpus"]
        self._device = gpus[0]["uuid"] if gpus else CPU

    def left_s(self) -> float:
        return self._deadline - time.monotonic()

    def take(self, name: str) -> None:
        """Do one row; nothing that happens in it stops the others."""
        done = self.rows.get(name, {}).get("outcome", "not run") not in UNFINISHED
        if self.left_s() < LEAST_S or (done and name != self._reference_name):
            return
        experiment, _, form = name.partition("@")
        folder = self._results / "experiments" / experiment
        plan = untouched(artifact.read(folder / "plan.json"))
        row: dict[str, Any] = {
            "outcome": "not run",
            "started_s": round(time.monotonic() - self._began, 1),
            "expected": expected(plan),
            "plan_warnings": plan["warnings"],
            "flags": plan["flags"],
        }
        try:
            if plan["status"] != "ok":
                row |= {"outcome": "not startable", "reason": plan["reason"]}
            else:
                weights = artifact.read(folder / "weights.json")
                if form:
                    weights["snapshot"] = str((self._corrupted / form).absolute())
                self._boot(name, plan, weights, row)
        except Exception:
            row["error"] = traceback.format_exc()[-2000:]
        finally:
            if name == self._reference_name:
                self._ready.set()
        row["ended_s"] = round(time.monotonic() - self._began, 1)
        self._keep(name, row)

    def _boot(
        self, name: str, plan: artifact.Document, weights: artifact.Document, row: dict[str, Any]
    ) -> None:
        spec = serving.ServerSpec.of(plan, weights)
        home = Home.of(spec.process)
        folder = self._out / name
        folder.mkdir(parents=True, exist_ok=True)
        timer = threading.Timer(max(1.0, self.left_s()), home.stop)
        timer.daemon = True
        timer.start()
        try:
            server, boot = leasing.started(spec, home, [self._device], folder, 600.0)
            row["outcome"], row["load_s"] = "starts", boot.load_s
            self._examine(name, plan, boot, folder, row)
            if dead := leasing.failure_in_use(server):
                row |= {"outcome": "dies", "reason": str(dead)}
        except serving.ServerFailed as failure:
            slow = failure.cause in ("silent", "too-slow")
            outcome = "not ready in time" if slow else "refuses"
            row |= {"outcome": outcome, "reason": session.explained(failure)}
        except serving.Interrupted:
            row["outcome"] = "not run" if row["outcome"] == "not run" else row["outcome"]
            row["cut_short"] = True
        finally:
            timer.cancel()
            home.stop()

    def _examine(
        self,
        name: str,
        plan: artifact.Document,
        boot: serving.Boot,
        folder: Path,
        row: dict[str, Any],
    ) -> None:
        server = evidence.server_document(
            experiment=name,
            plan=plan,
            boot=boot.id,
            argv=boot.argv,
            gpus=boot.gpus,
            load_s=boot.load_s,
            server_info=boot.server_info,
            model_info=boot.model_info,
            log=boot.log,
            live={},
            imports={},
        )
        items = probes.ask(boot.url, self._questions, concurrency=4, timeout_s=60)
        probe = probes.document(name, boot.id, ["arithmetic"], items, probes.Thresholds())
        row |= {"gate": probe["gate"], "right": probe["right"], "asked": probe["asked"]}
        row["outcome"] = "starts and is right" if probe["gate"] == "pass" else "starts but is wrong"
        artifact.write_text(folder / "probe.json", json.dumps(probe))
        self._compare(name, boot, row)
        with tempfile.TemporaryDirectory(prefix="bringup-traces-") as traces:
            kernels = evidence.take_kernels(
                boot.endpoint,
                server,
                experiment=name,
                boot=boot.id,
                log=boot.log,
                folder=Path(traces),
                concurrency=CONCURRENCY,
                ranks=plan["gpus"],
            )
            if name in self._kept:
                shutil.copytree(traces, folder / "traces", dirs_exist_ok=True)
        row["kernels"] = {
            key: kernels.get(key) for key in ("status", "reason", "sentence", "backends", "modules")
        }
        for stage, document in (("server", server), ("kernels", kernels)):
            artifact.write_text(folder / f"{stage}.json", json.dumps(document))
        artifact.write_text(folder / "server_info.json", json.dumps(boot.server_info))

    def _compare(self, name: str, boot: serving.Boot, row: dict[str, Any]) -> None:
        """Compare next-token distributions with the reference's, on texts that all are given."""
        told = reference.read(boot.url, TEXTS)
        if name == self._reference_name:
            self._reference = told
            self._ready.set()
            row["against_reference"] = compared(told, reference.read(boot.url, TEXTS))
        elif self._ready.wait(max(0.0, self.left_s())) and self._reference:
            row["against_reference"] = compared(self._reference, told)

    def _keep(self, name: str, row: dict[str, Any]) -> None:
        with self._lock:
            self.rows[name] = row
            artifact.write_text(self._out / "rows.json", json.dumps(self.rows, indent=1))
        reason = row.get("reason")
        why = reason["class"] if isinstance(reason, dict) else ""
        times = f"{row['started_s']:6.1f}-{row['ended_s']:6.1f}"
        right = f"{row.get('right', '-')}/{row.get('asked', '-')}"
        print(f"{times} {name}: {row['outcome']} {right} {why}", flush=True)


def side_by_side(names: list[str], count: int, take: Callable[[str], None]) -> None:
    """Do all rows, ``count`` at a time, in order."""
    with ThreadPoolExecutor(count) as threads:
        for _ in threads.map(take, names):
            pass


def main() -> None:
    """Read the arguments and do the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--side-by-side", type=int, default=8)
    parser.add_argument("--deadline-s", type=float, default=300.0)
    parser.add_argument("--rows", nargs="*", help="these, in this order; all where left out")
    parser.add_argument("--order", type=Path, help="a YAML list: rows that come first")
    parser.add_argument("--reference", default="rows-bf16--triton", help="row to compare with")
    parser.add_argument("--keep-traces", nargs="*", default=[], help="of these rows")
    parser.add_argument("--corrupted", type=Path, default=Path("corrupted"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    planned = sorted(p.parent.name for p in given.results.glob("experiments/rows-*/plan.json"))
    first = yaml.safe_load(given.order.read_text()) if given.order else []
    run = Run(given)
    names = given.rows or ordered(planned, first)
    side_by_side(names, given.side_by_side, run.take)
    for name in names:
        run.rows.setdefault(name, {"outcome": "not run"})
    artifact.write_text(given.out / "rows.json", json.dumps(run.rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
