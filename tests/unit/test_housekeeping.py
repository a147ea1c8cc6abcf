"""What no config entry uses any more is listed and removed, and nothing else."""

import json
import os
import re
from pathlib import Path

import pytest

from bringup import housekeeping, paths
from bringup.engine.environment import RECEIPT, Release

CONFIG = """\
checkpoints:
  small: {path: models/small}
  hub: {repo: owner/model, revision: main}
engines:
  stock: {version: 0.5.23}
  patched: {version: 0.5.23, patches: [{pr: 1}]}
experiments:
  kept: {checkpoint: small, engine: stock, sweep: {concurrency: [1, 8], boots: 2}}
"""
OVERLAY = "0123456789abcdef"
COMMIT, OLDER = "a" * 40, "b" * 40


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with results and caches, used and not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRINGUP_CACHE", str(tmp_path / "cache"))
    put("config/experiments.yaml", CONFIG)
    put("resources/probes/arithmetic.yaml", "")
    for name in ("kept", "gone"):
        for file in ("plan.json", "server.json", "server.log", "logs/probe.log", "serve.sh"):
            put(f"results/experiments/{name}/{file}")
        for point in ("c1", "c8", "c1.boot2", "c16", "c8.boot3"):
            put(f"results/experiments/{name}/points/{point}.json")
    put("results/checkpoints/small/format.json")
    put("results/checkpoints/older/format.json")
    put("results/checkpoints/hub/metadata.json", json.dumps({"source": {"commit": COMMIT}}))
    put("results/readings/small--stock.json")
    put("results/readings/older--stock.json")
    put("results/report.md")
    stock, patched = ({"python": python(used())}, {"pythonpath": [f"{{cache}}/overlays/{OVERLAY}"]})
    put("results/engines/stock/engine.json", json.dumps(stock))
    put("results/engines/patched/engine.json", json.dumps({**stock, **patched}))
    for key in (used(), "sglang-0.4.1-000000000000"):
        put(f"cache/envs/{key}/{RECEIPT}")
        put(f"cache/envs/{key}/bin/python", "x" * 9000)
    put("cache/envs/unfinished/bin/python")
    put(f"cache/overlays/{OVERLAY}/sglang/a.py")
    put("cache/overlays/fedcba9876543210/sglang/a.py")
    return tmp_path


def used():
    return Release("0.5.23").key


def python(key):
    return f"{{cache}}/envs/{key}/bin/python"


def put(path, text="{}"):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def hub(folder, commit, content, *, shared="the same in both"):
    """A revision in a hub cache as its client lays it out, and our link to it."""
    repo = folder / "hub/models--owner--model"
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir(exist_ok=True)
    for name, text in (("model.safetensors", content), ("config.json", shared)):
        blob = repo / "blobs" / str(abs(hash(text)))
        blob.write_text(text)
        (snapshot / name).symlink_to(os.path.relpath(blob, snapshot))
    link = folder / "cache/snapshots/owner--model" / commit
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(snapshot)
    return snapshot


def listed(capsys, *arguments):
    assert housekeeping.main(["--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def everything(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


UNUSED = {
    "cache/envs/sglang-0.4.1-000000000000",
    "cache/overlays/fedcba9876543210",
    "results/experiments/gone",
    "results/experiments/kept/points/c16.json",
    "results/experiments/kept/points/c8.boot3.json",
    "results/checkpoints/older",
    "results/readings/older--stock.json",
}


def test_lists_what_no_entry_uses_and_removes_nothing(project, capsys):
    before = everything(project)
    rows = listed(capsys)
    assert {os.path.relpath(row["path"], project) for row in rows} == UNUSED
    assert not any(row["removed"] for row in rows)
    assert everything(project) == before


def test_removes_just_that(project, capsys):
    before = everything(project)
    assert all(row["removed"] for row in listed(capsys, "--remove", *housekeeping.KINDS))
    gone = before - everything(project)
    assert gone == {file for file in before if any(Path(file).is_relative_to(u) for u in UNUSED)}
    assert listed(capsys) == []


def test_removes_only_the_kinds_named(project, capsys):
    listed(capsys, "--remove", "results")
    left = {os.path.relpath(row["path"], project) for row in listed(capsys)}
    assert left == {path for path in UNUSED if path.startswith("cache/")}


def test_says_how_many_bytes_it_frees(project, capsys):
    os.link("cache/overlays/fedcba9876543210/sglang/a.py", "elsewhere")  # frees nothing
    row = next(row for row in listed(capsys) if "0.4.1" in row["path"])
    disk = sum(
        path.lstat().st_blocks * 512 for path in Path(row["path"]).rglob("*") if path.is_file()
    )
    assert row["bytes"] == disk >= 9000
    assert next(row for row in listed(capsys) if "fedc" in row["path"])["bytes"] == 0


def test_a_levels_logs_go_with_it(project, capsys):
    logs = Path("results/experiments/kept/logs")
    for name in ("c16.log", "c16.1.records.json", "c1.log", "c8.boot3.log", "c8.boot2.log"):
        put(logs / name)
    listed(capsys, "--remove", "results")
    assert {path.name for path in logs.iterdir()} == {"probe.log", "c1.log", "c8.boot2.log"}


def test_a_file_that_the_workflow_did_not_make_stays(project, capsys):
    put("results/experiments/gone/notes.txt", "mine")
    (row,) = (row for row in listed(capsys, "--remove", "results") if row["path"].endswith("gone"))
    assert row["stays"] == ["notes.txt"]
    assert everything(Path("results/experiments/gone")) == {"notes.txt"}
    assert "gone" not in str(listed(capsys)), "there is nothing of ours in it any more"


def test_every_file_of_a_stage_is_known(project, capsys):
    """What the rules write below an experiment's folder goes with it."""
    rules = "".join(file.read_text() for file in (paths.PROJECT / "workflow/rules").glob("*.smk"))
    written = set(re.findall(r'"results/experiments/\{experiment\}/([^"]+)"', rules))
    assert {"plan.json", "reference.json", "points/c{concurrency}.boot{boot}.json"} <= written
    for file in written:
        put(f"results/experiments/gone/{file.format(concurrency=4, boot=2)}")
    (row,) = (row for row in listed(capsys, "--remove", "results") if row["path"].endswith("gone"))
    assert row["stays"] == []
    assert not Path("results/experiments/gone").exists()


def test_a_drafts_reading_is_used(project, capsys):
    put(
        "config/experiments.yaml",
        CONFIG.replace("engine: stock, ", "engine: stock, draft: hub, ", 1),
    )
    put("results/readings/hub--stock.json")
    rows = [os.path.relpath(row["path"], project) for row in listed(capsys)]
    assert "results/readings/older--stock.json" in rows
    assert "results/readings/hub--stock.json" not in rows


def test_what_a_link_leads_to_is_not_touched(project, capsys):
    put("precious/plan.json")
    for link in ("results/experiments/linked", "cache/envs/linked", "cache/overlays/linked"):
        Path(link).symlink_to(project / "precious")
    assert "linked" not in str(listed(capsys, "--remove", *housekeeping.KINDS))
    assert Path("precious/plan.json").exists()


def test_another_checkouts_config_counts_for_the_cache(project, capsys):
    put("other.yaml", CONFIG.replace("{version: 0.5.23}", "{version: 0.4.1}", 1))
    put(f"cache/envs/{Release('0.4.1').key}/{RECEIPT}")
    both = ("--config", "config/experiments.yaml", "--config", "other.yaml")
    assert Release("0.4.1").key not in str(listed(capsys, *both))
    assert Release("0.4.1").key in str(listed(capsys))


def test_nothing_is_unused_while_an_engine_has_not_been_built(project, capsys):
    Path("results/engines/patched/engine.json").unlink()
    assert "overlays" not in str(listed(capsys))


def test_an_environment_that_a_process_runs_from_is_kept(project, capsys, monkeypatch):
    folder = project / "cache/envs/sglang-0.4.1-000000000000"
    monkeypatch.setattr(housekeeping, "_user", lambda path: 7 if path == folder else None)
    assert housekeeping.main(["--remove", "environments"]) == 1
    assert "kept: process 7 runs from it" in capsys.readouterr().out
    assert (folder / RECEIPT).exists()


def test_revisions_that_no_checkpoint_is_at(project, capsys):
    new, old = hub(project, COMMIT, "new weights"), hub(project, OLDER, "old weights")
    (row,) = (row for row in listed(capsys) if row["kind"] == "checkpoints")
    assert Path(row["path"]).name == OLDER
    assert row["bytes"] == len("old weights"), "the other file belongs to the newer one too"
    listed(capsys, "--remove", "checkpoints")
    assert not old.exists()
    assert (new / "config.json").read_text() == "the same in both"
    assert (new / "model.safetensors").read_text() == "new weights"


def test_a_config_with_a_mistake_makes_nothing_unused(project, capsys):
    put("config/experiments.yaml", CONFIG.replace("engine: stock", "engine: stok"))
    assert housekeeping.main(["--remove", *housekeeping.KINDS]) == 2
    assert "there is no engine 'stok'; did you mean 'stock'?" in capsys.readouterr().err
    assert Path("results/experiments/gone").exists()
