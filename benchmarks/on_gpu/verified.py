"""docs/verified.md and .json, from what one.sh and two.sh brought back.

    python benchmarks/on_gpu/verified.py OUT… [--docs docs]

Each OUT is a folder that one of them wrote, the oldest first: what a later run tells of takes the
place of what an earlier one told of the same.  Nothing is filled in: what was not run says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import yaml

from bringup import evidence

Json = dict[str, Any]
HERE = Path(__file__).parent

WEIGHTS_MARGIN, KV_MARGIN = 0.03, 0.05
"""How far a prediction of memory may be off."""

KL_FACTOR = 3.0
"""A divergence this many times that of the clean form counts as noticed."""

UNFINISHED = ("not run", "starts")
"""Outcomes of rows that were cut short, or never begun."""

AGREES = {
    "recommended": "starts and is right",
    "works": "starts and is right",
    "starts-but-wrong": "starts but is wrong",
    "refuses": "refuses",
}
"""The table's verdict → what a forced run must show."""


def read(path: Path) -> Any:
    """Return a JSON file's content, None if it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def unpacked(brought: Path, into: Path) -> Path:
    """Unpack the archives that a run brought back; return the folder."""
    into.mkdir(parents=True)
    for archive in sorted(brought.glob("*.tar.xz")):
        target = into / archive.name.removesuffix(".tar.xz")
        target.mkdir()
        subprocess.run(["tar", "-xJf", archive, "-C", target], check=True)
    return into


# --- the rows ------------------------------------------------------------------------------------


def rows(runs: Sequence[Path]) -> list[Json]:
    """Return each forced row: what the table said, what happened, which kernels ran; the run."""
    told: dict[str, Json] = {}
    for number, run in enumerate(runs, 1):
        folder, results = run / "rows/rows", run / "results/results"
        for name, row in (read(folder / "rows.json") or {}).items():
            if name in told and row["outcome"] in UNFINISHED:
                continue
            known = foreseen(reread(row, folder / name), results / "experiments" / name)
            told[name] = {**row_of(name, known), "run": number}
    return [told[name] for name in sorted(told)]


def foreseen(row: Json, experiment: Path) -> Json:
    """Return a row with what its plan says of its backends, also where it was not run."""
    plan = read(experiment / "plan.json")
    return {"expected": plan["backend"], **row} if plan else row


def reread(row: Json, folder: Path) -> Json:
    """Return a row with what today's tables make of its trace, where that was kept."""
    traces = sorted(folder.glob("traces/*.json.gz"))
    if not traces:
        return row
    server = read(folder / "server.json")
    kernels = evidence.kernels_document(traces, server, experiment=folder.name, boot=None)
    return {**row, "kernels": kernels}


def row_of(name: str, row: Json) -> Json:
    """Return one row as the page has it."""
    experiment, _, form = name.partition("@")
    known = row.get("expected") or {}
    experts, dense = known.get("experts") or {}, known.get("dense") or {}
    backends = (row.get("kernels") or {}).get("backends") or {}
    reason = row.get("reason") if isinstance(row.get("reason"), dict) else None
    told = {
        "row": experiment,
        "corrupted": form or None,
        "format": experts.get("format"),
        "asked": experts.get("asked"),
        "linear": {"format": dense.get("format"), "asked": dense.get("asked")} if dense else None,
        "table": {"experts": experts.get("known"), "dense": dense.get("known")},
        "outcome": row["outcome"],
        "right": [row["right"], row["asked"]] if "right" in row else None,
        "used": {name: each.get("used") for name, each in backends.items()} or None,
        "verdicts": {name: each.get("verdict") for name, each in backends.items()} or None,
        "sentence": (row.get("kernels") or {}).get("sentence"),
        "load_s": row.get("load_s"),
        "reason": {key: reason[key] for key in ("class", "message")} if reason else None,
        "divergence": row.get("against_reference"),
    }
    return {**told, "agrees": None if form else agreement(told)}


def agreement(row: Json) -> str:
    """Say whether the table was right about a row.

    ``yes``, ``no``, ``unknown before`` where it did not know, ``not settled`` where the server was
    stopped while it was still starting, ``not run``.
    """
    if row["outcome"] in UNFINISHED:
        return "not run"
    if row["outcome"] == "not ready in time":
        return "not settled"
    known = [row["table"][module] for module in ("experts", "dense") if row["table"][module]]
    bad = next((each for each in known if each in ("refuses", "starts-but-wrong")), None)
    expected = AGREES.get(bad or (known[0] if known else ""))
    if expected is None:
        return "unknown before"
    return "yes" if row["outcome"] == expected else "no"


# --- corrupted scales ----------------------------------------------------------------------------


def power(found: Sequence[Json]) -> list[Json]:
    """Return for each kernel: divergence from bf16 of the clean form and of each corrupted one."""
    clean = {row["row"]: row for row in found if not row["corrupted"]}
    told = []
    for row in found:
        if not row["corrupted"] or not row["divergence"]:
            continue
        same = clean[row["row"]]  # but for the scales; its trace was kept
        healthy = same["divergence"]
        ratio = row["divergence"]["kl_mean"] / healthy["kl_mean"] if healthy else None
        told.append(
            {
                "row": row["row"],
                "corrupted": row["corrupted"],
                "used": (same["used"] or {}).get("experts"),
                "clean_right": same["right"],
                "clean_kl": healthy and healthy["kl_mean"],
                "kl": row["divergence"]["kl_mean"],
                "top1_agreement": row["divergence"]["top1_agreement"],
                "times": ratio,
                "by_divergence": ratio is not None and ratio >= KL_FACTOR,
                "by_questions": row["outcome"] == "starts but is wrong",
                "right": row["right"],
            }
        )
    return told


# --- what was timed ------------------------------------------------------------------------------


def points(results: Path) -> list[Json]:
    """Return every measured point with its energy and what slowed the GPU down."""
    told = []
    for path in sorted(results.glob("experiments/*/points/c*.json")):
        point = read(path)
        valid = [repeat for repeat in point.get("repeats", []) if not repeat["void"]]
        gpus = [repeat["gpu"] for repeat in valid if repeat.get("gpu")]
        if not valid:
            continue
        told.append(
            {
                "experiment": point["experiment"],
                "concurrency": point["concurrency"],
                "status": point["status"],
                "output_tok_s": point["summary"]["output_tok_s"],
                "ttft_ms_p50": point["summary"]["ttft_ms_p50"],
                "tpot_ms_p50": point["summary"]["tpot_ms_p50"],
                "joules_per_output_token": point["summary"]["joules_per_output_token"],
                **{
                    name: middle(gpu[name] for gpu in gpus)
                    for name in ("power_w", "idle_power_w", "clock_mhz", "utilisation")
                },
                "slowed": sorted({why for gpu in gpus for why in gpu["slowed"]}),
                "power_invalid": sorted({g["power_invalid"] for g in gpus if g["power_invalid"]}),
            }
        )
    return told


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known."""
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None


def idle(one: Path) -> Json | None:
    """Return power and clock of the GPU before anything was started on it, by nvidia-smi."""
    file = one / "logs/logs/nvidia-smi.csv"
    lines = file.read_text().splitlines()[1:] if file.is_file() else []
    rows = [[cell.strip().split(" ")[0] for cell in line.split(",")] for line in lines]
    empty = list(itertools.takewhile(lambda row: row[4] == "0", rows))
    if not empty:
        return None
    return {
        "power_w": middle(float(row[1]) for row in empty),
        "clock_mhz": middle(float(row[2]) for row in empty),
        "samples": len(empty),
    }


# --- memory --------------------------------------------------------------------------------------


def memory(two: Path) -> list[Json]:
    """Return predicted against found, for each shape."""
    config = yaml.safe_load((HERE / "two.yaml").read_text(encoding="utf-8"))["experiments"]
    told = []
    for name, each in (read(two / "memory/memory/memory.json") or {}).items():
        predicted, found = each["predicted"], each["found"]
        told.append(
            {
                "shape": config[name]["checkpoint"],
                "predicted": {key: predicted[key] for key in ("weights_gib", "kv_tokens")},
                "found": found,
                **{
                    f"{key}_off": off(predicted[key], found[key])
                    for key in ("weights_gib", "kv_tokens")
                },
                "reason": each["reason"] and each["reason"]["message"],
            }
        )
    return told


def off(predicted: float | None, found: float | None) -> float | None:
    """Return how far a prediction is off, as a share of what was found."""
    return None if not predicted or not found else round(predicted / found - 1, 4)


# --- two GPUs ------------------------------------------------------------------------------------


def boot_began(results: Path, name: str) -> float | None:
    """Return when an experiment's server was started, in seconds since 1970, by its boot's name."""
    server = read(results / "experiments" / name / "server.json")
    if not server or not server.get("boot"):
        return None
    began = datetime.strptime(server["boot"][:15], "%Y%m%d-%H%M%S")
    return began.replace(tzinfo=UTC).timestamp()


def ended(results: Path, name: str) -> float | None:
    """Return when an experiment's last point was done, in seconds since 1970."""
    times = [
        datetime.fromisoformat(read(path)["made"]["ended"]).timestamp()
        for path in results.glob(f"experiments/{name}/points/c*.json")
    ]
    return max(times, default=None)


def span(results: Path, names: Sequence[str]) -> float | None:
    """Return the seconds from the first of the servers' starts to the last point's end."""
    begins = [boot_began(results, name) for name in names]
    ends = [ended(results, name) for name in names]
    known = [time for time in (*begins, *ends) if time is not None]
    return max(known) - min(known) if len(known) == 2 * len(names) else None


def side_by_side(two: Path) -> Json:
    """Return two experiments one after the other against both at once.

    As whole commands, from Snakemake's start to its end, and from the first server's start to the
    last point's end.
    """
    names, taken = ["one--triton", "two--marlin"], steps(two)
    whole = [
        taken[name]["seconds"] if name in taken and taken[name]["exit"] == 0 else None
        for name in ("serial", "parallel")
    ]
    served = [span(two / folder, names) for folder in ("serial/serial", "results/results")]
    return {"commands": apart_and_together(*whole), "servers": apart_and_together(*served)}


def apart_and_together(apart: float | None, together: float | None) -> Json:
    """Return both times and their ratio."""
    ratio = round(apart / together, 3) if apart and together else None
    return {"serial_s": apart, "parallel_s": together, "ratio": ratio}


def over_both(two: Path) -> Json | None:
    """Return what one server over both GPUs showed."""
    folder = two / "results/results/experiments/both"
    kernels, server = read(folder / "kernels.json"), read(folder / "server.json")
    if not kernels or not server:
        return None
    modules = {each["module"]: each for each in kernels.get("modules") or []}
    named = [
        kernel for kernel in kernels.get("kernels") or [] if kernel.get("module") == "communication"
    ]
    return {
        "status": server["status"],
        "gpus": len(server["gpus"]),
        "traces": kernels.get("traces"),
        "communication": modules.get("communication"),
        "kernels": named[:5],
        "sentence": kernels.get("sentence"),
        "evicted": evicted(two),
    }


def evicted(two: Path) -> list[str]:
    """Return the experiments whose idle server was stopped because its GPU was wanted.

    Nothing else stops a server of these two: their workflow's end is another cause.
    """
    return [
        name
        for name in ("one--triton", "two--marlin")
        if any(
            "ended (stopped)" in log.read_text(errors="replace")
            for log in two.glob(f"serial/serial/experiments/{name}/server*.log")
        )
    ]


def steps(brought: Path) -> Json:
    """Return the seconds of each step of a script, by its own account."""
    file = brought / "logs/logs/steps.txt"
    text = file.read_text() if file.is_file() else ""
    lines = re.findall(r"^(\S+): exit (\d+), (\d+) (s|ms)", text, re.MULTILINE)
    return {
        name: {"exit": int(code), "seconds": int(number) / (1000 if unit == "ms" else 1)}
        for name, code, number, unit in lines
    }


def overhead(run: Path) -> Json | None:
    """Return an experiment's time in the workflow and by hand, whole and in parts.

    Whole are the two commands, from their start to their end.  They are different boots, whose
    loads differ by more than the workflow adds: ``ratio_of_same_load`` is what the workflow would
    have taken with the load by hand.
    """
    taken, folder = steps(run), run / "overheads/overheads"
    by_hand = read(folder / "by-hand.json")
    experiment = "experiments/whole--triton"
    server = read(folder / f"results/{experiment}/server.json")
    if not (by_hand and server) or any(
        taken.get(name, {}).get("exit") != 0 for name in ("workflow", "by-hand")
    ):
        return None
    workflow_s, by_hand_s = taken["workflow"]["seconds"], taken["by-hand"]["seconds"]
    jobs = dict(job_seconds(run / "logs/logs/times.json", f"results/{experiment}/"))
    parts = {"launch": by_hand["load_s"], "probe": by_hand["probe_s"]}
    parts |= {f"points/c{level}": seconds for level, seconds in by_hand["points_s"].items()}
    same_load_s = workflow_s - server["load_s"] + by_hand["load_s"]
    return {
        "workflow_s": workflow_s,
        "by_hand_s": by_hand_s,
        "ratio": round(workflow_s / by_hand_s, 3),
        "load_s": {"workflow": server["load_s"], "by_hand": by_hand["load_s"]},
        "ratio_of_same_load": round(same_load_s / by_hand_s, 3),
        "parts": [
            {"part": part, "workflow_s": jobs.get(part), "by_hand_s": seconds}
            for part, seconds in parts.items()
        ],
    }


def job_seconds(times: Path, folder: str) -> Iterator[tuple[str, float]]:
    """Yield the stage and the seconds of each job that a run remembers below ``folder``."""
    for line in times.read_text().splitlines():
        rule, output, seconds = json.loads(line)
        if output.startswith(folder):
            stage = output.removeprefix(folder).removesuffix(".json")
            yield ("launch" if rule == "launch" else stage), seconds


# --- the page ------------------------------------------------------------------------------------


def account(run: Path) -> Json:
    """Return when and on what a run was, of which revision, and how long its steps took."""
    results, logs = run / "results/results", run / "logs/logs"
    machine, engine = read(results / "hardware.json"), read(results / "engines/there/engine.json")
    told = ("gpus", "driver", "cuda", "cpu", "ram_gib", "links")
    revision, day = logs / "REVISION", logs / "DATE"
    return {
        "date": day.read_text().strip() if day.is_file() else last_day(results),
        "revision": revision.read_text().strip() if revision.is_file() else None,
        "machine": machine and {key: machine[key] for key in told},
        "sglang": engine and engine["version"],
        "tree": engine and engine["tree"],
        "steps": steps(run),
    }


def last_day(results: Path) -> str | None:
    """Return the day on which the last point of these results was measured."""
    points = results.glob("experiments/*/points/c*.json")
    ends = [document["made"]["ended"] for path in points if (document := read(path)).get("made")]
    return max(ends)[:10] if ends else None


def newest(told: Iterable[Any]) -> Any:
    """Return the last that says something, else the last."""
    every = list(told)
    return next((each for each in reversed(every) if each), every[-1] if every else None)


def edits(run: Path) -> Json:
    """Return the seconds from each edit to a new report, as far as one came."""
    return {
        name: step["seconds"]
        for name, step in steps(run).items()
        if name in ("level", "backend", "patch") and step["exit"] == 0
    }


def gathered(brought: Sequence[Path], scratch: Path) -> Json:
    """Return the whole document."""
    runs = [unpacked(each, scratch / str(number)) for number, each in enumerate(brought)]
    pairs = [run for run in runs if (run / "serial").is_dir()]
    single = [run for run in runs if run not in pairs]
    found = rows(runs)
    return {
        "schema": "verified/2",
        "runs": [account(run) for run in runs],
        "rows": found,
        "power": power(found),
        "points": newest(points(run / "results/results") for run in single) or [],
        "idle": next(filter(None, map(idle, single)), None),
        "memory": newest(map(memory, runs)) or [],
        "side_by_side": newest(map(side_by_side, pairs)),
        "over_both": newest(map(over_both, pairs)),
        "overhead": newest(map(overhead, runs)),
        "edits": {name: seconds for run in runs for name, seconds in edits(run).items()},
    }


def page(told: Json) -> str:
    """Return docs/verified.md."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": cell, "percent": percent, "short": short}
    agreed = Counter(row["agrees"] for row in told["rows"] if not row["corrupted"])
    return environment.get_template("verified.md.j2").render(
        **told,
        agreed=agreed,
        kl_factor=KL_FACTOR,
        weights_margin=WEIGHTS_MARGIN,
        kv_margin=KV_MARGIN,
    )


def cell(value: Any) -> str:
    """Return a value as a table shows it; None is a dash."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def percent(share: float | None) -> str:
    """Return a share with its sign."""
    return "–" if share is None else f"{100 * share:+.1f} %"


def short(row: str) -> str:
    """Return a row's name without what all names have in common."""
    return row.removeprefix("rows-")


def main() -> None:
    """Read the arguments and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="+")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        told = gathered(given.out, Path(scratch))
    text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
    (given.docs / "verified.json").write_text(text, encoding="utf-8")
    (given.docs / "verified.md").write_text(page(told), encoding="utf-8")


if __name__ == "__main__":
    main()
