"""Accuracy on benchmarks, by a harness that others maintain: EleutherAI's lm-eval (seen: 0.4.13).

The harness lives in an environment of its own, that the user makes (``uv venv lm && uv pip install
--python lm/bin/python 'lm_eval[api]'``), and downloads the data sets that its tasks name.  It talks
to the server's chat endpoint.  What a task has to reach is held against the confidence interval of
its score, not against the score: a hundred questions say little.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bringup import artifact
from bringup.artifact import Document

SCHEMA = "accuracy/1"

CHAT = "/v1/chat/completions"
Z = 1.959964
"""Of a normal distribution, the deviations that hold 95 %."""
SAID = 2000
"""Characters that are kept of what the harness said when it failed."""

Verdict = Literal["reached", "unsure", "below"]


@dataclass(frozen=True)
class Score:
    """What a task gave: a share of right answers out of ``n``, and what it had to be.

    ``stderr`` is the harness's; ``low`` and ``high`` are Wilson's interval at 95 %, which holds
    for shares near 0 and 1 as well.
    """

    task: str
    metric: str
    value: float
    stderr: float | None
    n: int
    low: float
    high: float
    least: float
    verdict: Verdict


def interval(value: float, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share ``value`` seen in ``n`` trials (Wilson 1927)."""
    middle = (value + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(value * (1 - value) / n + Z**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def judged(low: float, high: float, least: float) -> Verdict:
    """Return whether a score is at least ``least``, below it, or too uncertain to tell."""
    if high < least:
        return "below"
    return "reached" if low >= least else "unsure"


def measure(
    experiment: str,
    boot: str,
    url: str,
    settings: Mapping[str, Any],
    *,
    api_key: str | None = None,
) -> Document:
    """Run the tasks of an experiment against a server; return accuracy.json.

    Args:
        experiment: its name.
        boot: the server's life.
        url: its address.
        settings: ``accuracy`` of the config: python, tasks, limit, folder, concurrency.
        api_key: what the server wants to be asked with.

    Raises:
        OSError: the harness failed, which says nothing about the experiment.
    """
    with tempfile.TemporaryDirectory(prefix="bringup-accuracy-") as folder:
        argv = command(url, settings, Path(folder))
        environment = {**os.environ, "OPENAI_API_KEY": api_key or "none"}
        environment.pop("PYTHONPATH", None)  # ours is not the harness's
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
        files = sorted(Path(folder).rglob("results*.json"))
        if done.returncode or not files:
            last = " ".join((done.stderr or done.stdout).split())[-SAID:]
            raise OSError(f"the harness ended with code {done.returncode}: {last}")
        results = json.loads(files[-1].read_text(encoding="utf-8"))
    found = scores(results, settings["tasks"])
    short = [each for each in found if each.verdict == "below"]
    why = "; ".join(
        f"{each.task}: {each.value:.3f} of {each.n} (95 %: {each.low:.3f} to {each.high:.3f}), "
        f"at least {each.least:g} was wanted"
        for each in short
    )
    return artifact.document(
        SCHEMA,
        "wrong" if short else "ok",
        artifact.reason("accuracy-below", why) if short else None,
        experiment=experiment,
        boot=boot,
        harness={"name": "lm-eval", "version": str(results.get("lm_eval_version"))},
        scores=[asdict(each) for each in found],
    )


def command(url: str, settings: Mapping[str, Any], output: Path) -> list[str]:
    """Return the harness's command line."""
    server = {
        "model": "default",
        "base_url": url + CHAT,
        "num_concurrent": settings["concurrency"],
        "max_retries": 1,
        "tokenized_requests": False,
    }
    argv = [
        *(settings["python"], "-m", "lm_eval", "--model", "local-chat-completions"),
        *("--model_args", ",".join(f"{key}={value}" for key, value in server.items())),
        *("--tasks", ",".join(settings["tasks"]), "--apply_chat_template"),
        *("--output_path", str(output)),
    ]
    if "folder" in settings:
        argv += ["--include_path", settings["folder"]]
    if "limit" in settings:
        argv += ["--limit", str(settings["limit"])]
    return argv


def scores(results: Mapping[str, Any], tasks: Mapping[str, Any]) -> list[Score]:
    """Return the scores that were asked for from the harness's results file.

    Raises:
        OSError: a task or its metric is not in it; the message names those that are.
    """
    found = []
    for task, wanted in tasks.items():
        given = results["results"].get(task, {})
        key = wanted["metric"] if "," in wanted["metric"] else f"{wanted['metric']},none"
        if key not in given:
            known = [name for name in given if "," in name and "_stderr" not in name]
            raise OSError(
                f"accuracy.tasks.{task}: no metric {key!r} in the harness's results; "
                f"there are: {', '.join(known) or 'none'}"
            )
        name, _, filter_ = key.partition(",")
        value, stderr = float(given[key]), given.get(f"{name}_stderr,{filter_}")
        n = int(results["n-samples"][task]["effective"])
        low, high = interval(value, n)
        found.append(
            Score(
                task,
                key,
                value,
                float(stderr) if isinstance(stderr, int | float) else None,
                n,
                low,
                high,
                wanted["least"],
                judged(low, high, wanted["least"]),
            )
        )
    return found
