"""Planning for a cluster's nodes: what jobs would ask for, told without a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bringup import artifact
from project import Copy

NODES = """\
nodes:
  small: {gpus: {count: 1, name: A100, memory_gib: 79.3}, cores: 16, ram_gib: 100}
  large: {gpus: {count: 8, name: H100, memory_gib: 79.6}, cores: 96, ram_gib: 900}
"""
CONFIG = """\
checkpoints: {model: {path: resources/arithmetic-moe/bf16}}
engines: {stock: {version: 0.5.23}}
defaults: {checkpoint: model, engine: stock}
experiments:
  one: {}
  four: {requires: {capability: "9.0"}, server: {tp: 4}, sweep: {isolation: host}}
  sixteen: {requires: {gpus: 16}}
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A project with a table of nodes, in which two experiments are planned."""
    copy = Copy(tmp_path_factory.mktemp("nodes"))
    (copy.home / "config/experiments.yaml").write_text(CONFIG)
    (copy.home / "profiles/slurm/nodes.yaml").write_text(NODES)
    for name in ("one", "four"):
        plan = artifact.document("plan/1", weights_bytes=40_000_000_000, device="cuda")
        artifact.write(copy.home / f"results/experiments/{name}/plan.json", plan)
    return copy


def dry_run(copy: Copy, *arguments: str) -> str:
    done = copy.snakemake(
        *("--dry-run", "--workflow-profile", "none"),
        *("--configfile", "profiles/slurm/nodes.yaml", *arguments),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def resources(text: str, rule: str, experiment: str) -> dict[str, str]:
    """Return the resources of a job in Snakemake's own words."""
    (job,) = (
        block
        for block in re.split(r"^(?=(?:local)?rule )", text, flags=re.MULTILINE)
        if re.match(rf"(local)?rule {rule}:", block) and f"experiment={experiment}" in block
    )
    line = re.search(r"^    resources: (.*)$", job, re.MULTILINE)
    assert line
    return dict(each.split("=", 1) for each in line[1].split(", "))


def test_jobs_ask_for_the_kind_of_node_and_the_time_that_the_plan_tells(copy: Copy) -> None:
    names = ("one", "four")
    text = dry_run(copy, "--", *(f"results/experiments/{name}/server.json" for name in names))
    one, four = resources(text, "launch", "one"), resources(text, "launch", "four")
    assert (one["node"], one["gpu"], one["alone"]) == ("small", "1", "0")
    assert (four["node"], four["gpu"], four["alone"]) == ("large", "4", "1")
    assert int(one["load_s"]) == 75 + 40 / 2  # seconds to import, GB at 2 GB/s
    assert int(resources(text, "weights", "one")["seconds"]) == 400  # at 100 MB/s


def test_engines_are_built_on_a_node_that_uses_them(copy: Copy) -> None:
    text = dry_run(copy, "--", "results/engines/stock/engine.json")
    assert "node=small, seconds=3600, gpu=1" in text


def test_plans_are_made_for_the_kind_and_refused_where_none_will_do(copy: Copy) -> None:
    text = dry_run(copy, "--forcerun", "plan", "--", "results/experiments/four/plan.json")
    assert "results/hardware/large.json" in text
    text = dry_run(copy, "--", "results/experiments/sixteen/plan.json")
    assert not re.search(r"^(local)?rule (engine|metadata):", text, re.MULTILINE)


def test_the_configs_hardware_has_no_place_there(copy: Copy) -> None:
    config = copy.home / "config/experiments.yaml"
    text = config.read_text()
    config.write_text("hardware: {gpus: []}\n" + text)
    try:
        done = copy.snakemake("--dry-run", "--configfile", "profiles/slurm/nodes.yaml")
    finally:
        config.write_text(text)
    assert done.returncode
    said = [line for line in (done.stdout + done.stderr).splitlines() if "hardware:" in line]
    assert said == [
        f"{Path('config/experiments.yaml')}: hardware: takes no part on a cluster; remove it"
    ]
