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

OVERHEAD_LIMIT = 1.05
"""How many times as long as by hand the workflow may take."""

UNFINISHED = ("not run", "starts")
"""Outcomes of rows that were cut short, or never begun."""

LACKED = {"kernel-download": "kernels could not be downloaded"}
"""Class of a failure that says nothing of the backend → the outcome that it is."""

UNSETTLED = ("not ready in time", *LACKED.values())
"""Outcomes after which nobody knows whether the backend would have run."""

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


def rows_of(run: Path) -> list[Json]:
    """Return each forced row: what the table said, what happened, which kernels ran."""
    folder, results = run / "rows/rows", run / "results/results"
    return [
        row_of(name, foreseen(reread(row, folder / name), results / "experiments" / name))
        for name, row in sorted((read(folder / "rows.json") or {}).items())
    ]


def latest(runs: Iterable[Sequence[Json]]) -> list[Json]:
    """Return each row of several runs as the last one that finished it tells of it; which one."""
    told: dict[tuple[str, str], Json] = {}
    for number, found in enumerate(runs, 1):
        for row in found:
            name = (row["row"], row["corrupted"] or "")
            if name not in told or row.get("outcome") not in UNFINISHED:
                told[name] = {**row, "run": number}
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
    lacked = reason and LACKED.get(reason["class"])
    told = {
        "row": experiment,
        "corrupted": form or None,
        "format": experts.get("format"),
        "asked": experts.get("asked"),
        "linear": {"format": dense.get("format"), "asked": dense.get("asked")} if dense else None,
        "table": {"experts": experts.get("known"), "dense": dense.get("known")},
        "outcome": lacked or row["outcome"],
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
    stopped while it was still starting or wanted kernels from the network, ``not run``.
    """
    if row["outcome"] in UNFINISHED:
        return "not run"
    if row["outcome"] in UNSETTLED:
        return "not settled"
    known = [row["table"][module] for module in ("experts", "dense") if row["table"][module]]
    bad = next((each for each in known if each in ("refuses", "starts-but-wrong")), None)
    expected = AGREES.get(bad or (known[0] if known else ""))
    if expected is None:
        return "unknown before"
    return "yes" if row["outcome"] == expected else "no"


# --- corrupted scales ----------------------------------------------------------------------------


def power(found: Sequence[Json]) -> list[Json]:
    """Return for each kernel: divergence from bf16 of the clean form and of each corrupted one.

    All rows are of one run: other weights diverge otherwise.
    """
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


def one_of(power: Iterable[Json]) -> list[int]:
    """Return of the corruptions of one expert how many KL saw, and how many there are."""
    single = [row["by_divergence"] for row in power if row["corrupted"].endswith("-expert")]
    return [sum(single), len(single)]


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
    loads and speeds differ by more than the workflow adds: ``ratio_of_same_load`` is what the
    workflow would have taken with the load by hand, ``ratio_of_same_work`` with that and repeats
    as long as those by hand (None where those were not noted).
    """
    taken, folder = steps(run), run / "overheads/overheads"
    by_hand = read(folder / "by-hand.json")
    experiment = folder / "results/experiments/whole--triton"
    server = read(experiment / "server.json")
    if not (by_hand and server) or any(
        taken.get(name, {}).get("exit") != 0 for name in ("workflow", "by-hand")
    ):
        return None
    wholes = [taken[name]["seconds"] for name in ("workflow", "by-hand")]
    jobs = dict(job_seconds(run / "logs/logs/times.json", f"{experiment.relative_to(folder)}/"))
    load_s, noted = server["load_s"], by_hand.get("repeats_s") or {}
    parts = [
        part("the server's load", load_s, by_hand["load_s"]),
        part("launch, beyond it", jobs["launch"] - load_s, None),
        part("probe", jobs["probe"], by_hand["probe_s"]),
    ]
    for level, seconds in by_hand["points_s"].items():
        stage = f"points/c{level}"
        repeats = read(experiment / f"{stage}.json")["repeats"]
        repeats_s = round(sum(repeat["duration_s"] for repeat in repeats), 3)
        each = part(f"C = {level}", jobs[stage], seconds)
        parts.append(
            each | {"workflow_repeats_s": repeats_s, "by_hand_repeats_s": noted.get(level)}
        )
    sums = [sum(each[f"{side}_s"] or 0.0 for each in parts) for side in ("workflow", "by_hand")]
    rest = [round(whole - known, 3) for whole, known in zip(wholes, sums, strict=True)]
    same_load_s = wholes[0] - load_s + by_hand["load_s"]
    told = {
        "workflow_s": wholes[0],
        "by_hand_s": wholes[1],
        "ratio": round(wholes[0] / wholes[1], 3),
        "ratio_of_same_load": round(same_load_s / wholes[1], 3),
        "ratio_of_same_work": None,
        "parts": [*parts, part("start, end, between jobs", *rest)],
    }
    if noted:
        longer_s = sum(e["workflow_repeats_s"] - e["by_hand_repeats_s"] for e in parts[3:])
        told["ratio_of_same_work"] = round((same_load_s - longer_s) / wholes[1], 3)
    return told


def part(name: str, workflow_s: float, by_hand_s: float | None) -> Json:
    """Return what one part of an experiment took either way; its repeats, where it has some."""
    told = {"part": name, "workflow_s": round(workflow_s, 3), "by_hand_s": by_hand_s}
    return told | {"workflow_repeats_s": None, "by_hand_repeats_s": None}


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
        "weights": weights(results),
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
    """Return the seconds from each edit to a new report, as far as one came, and the jobs between.

    The jobs are told by what the command printed: what was done, and how long it took.
    """
    return {
        name: {"seconds": step["seconds"], "jobs": done(run / f"logs/logs/{name}.log")}
        for name, step in steps(run).items()
        if name in ("level", "backend", "patch") and step["exit"] == 0
    }


def done(log: Path) -> list[list[str]]:
    """Return what a run of the workflow did, in order, and how long each took, in its words."""
    lines = re.findall(r"^[\d:]{8}  (?:\S+: )?(.+) done in ([^;]+);", log.read_text(), re.MULTILINE)
    return [list(line) for line in lines]


def weights(results: Path) -> str | None:
    """Return the digest of the bundled checkpoint's weights: other ones diverge otherwise."""
    told = read(results / "experiments/rows-bf16--triton/weights.json")
    files = {each["name"]: each["sha256"] for each in told["files"]} if told else {}
    return files.get("model.safetensors")


def gathered(brought: Sequence[Path], scratch: Path) -> Json:
    """Return the whole document."""
    runs = [unpacked(each, scratch / str(number)) for number, each in enumerate(brought)]
    pairs = [run for run in runs if (run / "serial").is_dir()]
    single = [run for run in runs if run not in pairs]
    found = list(map(rows_of, runs))
    return {
        "schema": "verified/3",
        "runs": [account(run) for run in runs],
        "rows": latest(found),
        "power": latest(map(power, found)),
        "points": newest(points(run / "results/results") for run in single) or [],
        "idle": next(filter(None, map(idle, single)), None),
        "memory": newest(map(memory, runs)) or [],
        "side_by_side": newest(map(side_by_side, pairs)),
        "over_both": newest(map(over_both, pairs)),
        "overhead": newest(map(overhead, runs)),
        "edits": {name: told for run in runs for name, told in edits(run).items()},
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
    environment.filters |= {"cell": cell, "percent": percent, "seconds": seconds, "short": short}
    agreed = Counter(row["agrees"] for row in told["rows"] if not row["corrupted"])
    return environment.get_template("verified.md.j2").render(
        **told,
        agreed=agreed,
        unsettled=UNSETTLED,
        single=one_of(told["power"]),
        kl_factor=KL_FACTOR,
        overhead_limit=OVERHEAD_LIMIT,
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


def seconds(value: float | None) -> str:
    """Return seconds to a tenth."""
    return "–" if value is None else f"{value:.1f}"


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
