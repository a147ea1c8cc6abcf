"""What a full run would cost: bytes to fetch, servers to load, minutes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from bringup import words
from bringup.artifact import Document
from bringup.plan import sweep

GB = 1_000_000_000

FOLDER = "results/experiments"
"""Where the outputs of an experiment's jobs stand."""

PARTLY = "an earlier run, in part"
"""Where a row's seconds are from, if some jobs never ran."""

LOAD_S = {"cpu": 35.0, "cuda": 75.0}
"""Seconds until a server answers, weights apart, where no earlier run tells.

35 s: SGLang 0.5.23 on 2 CPU cores; 75 s: 0.5.16 on an H200 with warm kernel caches (71 s)."""

READ_BYTES_PER_S = 2 * GB
"""Weights read from a local disk into GPU memory, where no earlier run tells."""

FETCH_BYTES_PER_S = 100_000_000
"""Weights fetched from a hub, where nothing better is known."""

LEVEL_EXTRA_S = 15.0
"""Seconds of one level besides its repeats: probes before and after, warm-up."""

PROBE_S = 15.0
"""Seconds of the probe after a launch."""


def cost(
    plans: Sequence[Document],
    sweeps: Mapping[str, Mapping[str, Any]],
    *,
    took: Mapping[str, float] | None = None,
    here: Collection[str] = (),
    profiled: Collection[str] = (),
) -> Document:
    """Return what running the experiments of ``plans`` would cost.

    Args:
        plans: every ``plan.json``; only those of status ``ok`` cost anything.
        sweeps: by experiment, ``{concurrency, repeats, min_seconds, boots}``.
        took: seconds that jobs took in earlier runs, by their first output.
        here: checkpoints whose weights need not be fetched.
        profiled: experiments that end with a profile of their kernels.

    Returns:
        ``{experiments: [{experiment, status, fetch_bytes, load_s, seconds, from}], fetch_bytes,
        unknown_sizes, engines, loads, minutes}``; a checkpoint is fetched once, for the first that
        needs it, and ``engines`` were built for the plans.
    """
    fetched: set[str] = set(here)
    rows = []
    for plan in plans:
        rows.append(_row(plan, sweeps, took or {}, fetched, plan["experiment"] in profiled))
        if plan["status"] == "ok":
            fetched |= {plan["checkpoint"], plan["draft"]} - {None}
    running = [row for row in rows if row["status"] == "ok"]
    fetch = sum(row["fetch_bytes"] or 0 for row in running)
    whole = sum(row["seconds"] for row in running) + fetch / FETCH_BYTES_PER_S
    return {
        "experiments": rows,
        "fetch_bytes": fetch,
        "unknown_sizes": sorted(
            {row["checkpoint"] for row in running if row["fetch_bytes"] is None}
        ),
        "engines": sorted({plan["engine"] for plan in plans if plan["status"] == "ok"}),
        "loads": sum(sweeps[row["experiment"]]["boots"] for row in running),
        "minutes": round(whole / 60, 1),
    }


def seconds(plan: Document, stage: str, levels: Mapping[str, Any]) -> float:
    """Return how long a stage of an experiment is estimated to take, its server apart.

    Args:
        plan: ``plan.json``; what won't run takes no time.
        stage: ``weights``, ``load`` (of the server), ``launch``, ``probe``, ``point`` (one level),
            ``kernels``.
        levels: ``{repeats, min_seconds}``, for ``point``.
    """
    if plan["status"] != "ok":
        return 0.0
    size = plan["weights_bytes"] or 0
    if stage == "weights":
        return float(size / FETCH_BYTES_PER_S)
    if stage == "load":
        return float(LOAD_S[plan["device"]] + size / READ_BYTES_PER_S)
    if stage == "point":
        return float(levels["repeats"] * levels["min_seconds"] + LEVEL_EXTRA_S)
    return PROBE_S


def table(cost: Document) -> str:
    """Return a cost as Markdown."""
    lines = [
        "| experiment | status | to fetch | server ready after | minutes |",
        "|---|---|---|---|---|",
    ]
    for row in cost["experiments"]:
        ready = "–" if row["load_s"] is None else f"{row['load_s']:.0f} s"
        minutes = "–" if row["seconds"] is None else f"{row['seconds'] / 60:.1f} ({row['from']})"
        cells = (row["experiment"], row["status"], _size(row), ready, minutes)
        lines.append("| " + " | ".join(cells) + " |")
    unknown = "".join(f"; the size of {name} is not known" for name in cost["unknown_sizes"])
    lines += [
        "",
        f"In all: {cost['fetch_bytes'] / GB:.1f} GB to fetch{unknown}, "
        f"{words.counted(cost['loads'], 'server load')}, about {cost['minutes']:g} minutes. "
        f"Engine builds: none left; {', '.join(cost['engines']) or 'none'} built for these plans.",
        "",
    ]
    return "\n".join(lines)


def remarks(plans: Sequence[Document], sweeps: Mapping[str, Mapping[str, Any]]) -> str:
    """Return as Markdown why plans say no, what they warn of, and how much runs at once."""
    lines = [
        line
        for plan in sorted(plans, key=lambda plan: str(plan["experiment"]))
        for line in _remarks(plan, sweeps[plan["experiment"]])
    ]
    return "\n".join([*lines, ""]) if lines else ""


def _remarks(plan: Document, levels: Mapping[str, Any]) -> Iterator[str]:
    name = plan["experiment"]
    if cause := plan["reason"]:
        hint = f" ({cause['hint']})" if cause["hint"] else ""
        yield f"- **{name}** {plan['status']}: {cause['message']}{hint}"
    if plan["status"] == "ok":
        tokens = levels["input_tokens"] + levels["output_tokens"]
        at_once = sweep.largest_concurrency(plan, tokens)
        room = f"{at_once} requests of {tokens} tokens run at once" if at_once else "room not known"
        yield f"- **{name}**: {room}"
        for warning in [*plan["warnings"], *sweep.warnings(plan, levels)]:
            yield f"  - {warning['class']}: {warning['message']}"


def _row(
    plan: Document,
    sweeps: Mapping[str, Mapping[str, Any]],
    took: Mapping[str, float],
    fetched: Collection[str],
    profiled: bool,
) -> Document:
    name = plan["experiment"]
    row: Document = {"experiment": name, "checkpoint": plan["checkpoint"], "status": plan["status"]}
    if plan["status"] != "ok":
        return {**row, "fetch_bytes": 0, "load_s": None, "seconds": None, "from": None}
    jobs = dict(_jobs(plan, sweeps[name], profiled))
    known = sum(output in took for output in jobs)
    ready = took.get(f"{FOLDER}/{name}/server.json", seconds(plan, "load", {}))
    return {
        **row,
        "fetch_bytes": _to_fetch(plan, fetched),
        "load_s": round(ready, 1),
        "seconds": round(sum(took.get(output, guess) for output, guess in jobs.items()), 1),
        "from": "an earlier run" if known == len(jobs) else PARTLY if known else "estimated",
    }


def _jobs(plan: Document, levels: Mapping[str, Any], profiled: bool) -> Iterator[tuple[str, float]]:
    """Yield the first output of each job that uses a server, and how long it is estimated to take.

    The first job on each life of a server waits until it is ready.
    """
    folder, load = f"{FOLDER}/{plan['experiment']}", seconds(plan, "load", {})
    yield f"{folder}/server.json", load
    yield f"{folder}/probe.json", seconds(plan, "probe", {})
    for boot in range(1, levels["boots"] + 1):
        for place, level in enumerate(levels["concurrency"]):
            waits = load if boot > 1 and place == 0 else 0.0
            number = "" if boot == 1 else f".boot{boot}"
            yield f"{folder}/points/c{level}{number}.json", waits + seconds(plan, "point", levels)
    if profiled:
        yield f"{folder}/kernels.json", seconds(plan, "kernels", {})


def _to_fetch(plan: Document, fetched: Collection[str]) -> int | None:
    """Return the bytes of the checkpoints that are not here; None if a size is not known."""
    sizes = {plan["checkpoint"]: plan["weights_bytes"]}
    if plan["draft"]:
        sizes[plan["draft"]] = plan["draft_bytes"]
    missing: list[int | None] = [size for name, size in sizes.items() if name not in fetched]
    return None if None in missing else sum(size or 0 for size in missing)


def _size(row: Document) -> str:
    if row["status"] != "ok":
        return "–"
    return "not known" if row["fetch_bytes"] is None else f"{row['fetch_bytes'] / GB:.1f} GB"
