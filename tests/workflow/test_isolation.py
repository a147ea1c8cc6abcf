"""What an experiment has to itself: its GPUs, or the whole machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from project import Copy

CONFIG = """\
hardware: {gpus: {count: 4, name: H100, memory_gib: 79.6}}
checkpoints: {small: {path: resources/arithmetic-moe/bf16}}
engines: {stock: {version: 0.5.23}}
defaults: {checkpoint: small, engine: stock, sweep: {isolation: %s}}
experiments: {one: {}, two: {}, three: {}}
"""
STAND_IN = """\
import json, time
from pathlib import Path

began = time.time()
time.sleep(2)
for output in snakemake.output:
    Path(output).write_text(json.dumps([began, time.time()]))
raise SystemExit(0)
"""
NAMES = ("one", "two", "three")


def lives(home: Path, isolation: str) -> list[tuple[float, float]]:
    """Launch three experiments with all cores; return when each began and ended, in order."""
    copy = Copy(home)
    (home / "config/experiments.yaml").write_text(CONFIG % isolation)
    (home / "workflow/scripts/launch.py").write_text(STAND_IN)
    (home / "results/engines/stock").mkdir(parents=True)
    (home / "results/engines/stock/engine.json").write_text("{}")
    documents = [home / f"results/experiments/{name}/server.json" for name in NAMES]
    for document in documents:
        document.parent.mkdir(parents=True)
        for name in ("plan", "weights"):
            (document.parent / f"{name}.json").write_text("{}")
    targets = [str(document.relative_to(home)) for document in documents]
    done = copy.snakemake("--cores", "4", "--allowed-rules", "launch", "--", *targets)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(tuple(json.loads(document.read_text())) for document in documents)


@pytest.mark.parametrize(("isolation", "at_once"), [("gpu", True), ("host", False)])
def test_only_where_the_config_says_so_nothing_else_runs(tmp_path, isolation, at_once):
    first, second, third = lives(tmp_path, isolation)
    assert (second[0] < first[1]) is at_once
    assert (third[0] < second[1]) is at_once
