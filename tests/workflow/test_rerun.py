"""One edit, and exactly the jobs that it touches: the promise of the workflow."""

import itertools
import os
import re
import textwrap

import pytest

from project import Copy

CONFIG = """\
defaults:
  probes: {suites: [arithmetic]}
checkpoints:
  small: {path: resources/arithmetic-moe/bf16}
  hub: {repo: owner/model, revision: main}
engines:
  stock: {version: 0.5.23}
  patched: {version: 0.5.23, patches: [{file: config/patches/announce.patch}]}
experiments:
  # two experiments that share a checkpoint
  one:
    checkpoint: small
    engine: stock
    server: {max-total-tokens: 8192, mem-fraction-static: 0.3}
    env: {SOME: value}
    sweep: {concurrency: [1, 8], input_tokens: 64, output_tokens: 32}
  two:
    checkpoint: small
    engine: patched
    sweep: {concurrency: [1]}
  three:
    checkpoint: hub
    engine: stock
    sweep: {concurrency: [1]}
  large:
    checkpoint: hub
    engine: stock
    requires: {gpus: 4, gpu_memory_gib: 80}
"""

REPORT = {"report.md"}


def points(name, *levels):
    return {f"experiments/{name}/points/c{level}.json" for level in levels}


def kernels(name):
    return {f"experiments/{name}/kernels.json"}


def from_probe(name, *levels):
    return {f"experiments/{name}/probe.json"} | points(name, *levels) | kernels(name)


def from_launch(name, *levels):
    return {f"experiments/{name}/server.json"} | from_probe(name, *levels)


def from_plan(name, *levels):
    folder = f"experiments/{name}"
    return {f"{folder}/plan.json", f"{folder}/weights.json"} | from_launch(name, *levels)


ONE, TWO, THREE = from_plan("one", 1, 8), from_plan("two", 1), from_plan("three", 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project in which everything has been made."""
    copy = Copy(tmp_path_factory.mktemp("finished"))
    (copy.home / "config/experiments.yaml").write_text(CONFIG)
    copy.finish()
    return copy


@pytest.fixture
def copy(finished):
    """The finished project, put back as it was after the test."""
    files = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for name in ("config", "src", "workflow", "resources", "envs")
        for path in (finished.home / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    yield finished
    for path, (content, mtime) in files.items():
        if path.read_bytes() != content:
            path.write_bytes(content)
        os.utime(path, ns=(mtime, mtime))


def test_nothing_changed_nothing_runs(copy):
    assert copy.jobs() == set()


def test_what_is_screened_out_asks_for_nothing(tmp_path):
    copy = Copy(tmp_path)
    (tmp_path / "config/experiments.yaml").write_text(CONFIG)
    jobs = copy.jobs("results/experiments/large/plan.json")
    assert jobs == {"hardware.json", "experiments/large/plan.json"}


EDITS = {
    "comment": ("# two experiments that", "# 2 experiments which", set()),
    "key order": (
        "{max-total-tokens: 8192, mem-fraction-static: 0.3}",
        "{mem-fraction-static: 0.3, max-total-tokens: 8192}",
        set(),
    ),
    "flow to block style": (
        "    server: {max-total-tokens: 8192, mem-fraction-static: 0.3}\n",
        "    server:\n      max-total-tokens: 8192\n      mem-fraction-static: 0.3\n",
        set(),
    ),
    "server argument": ("mem-fraction-static: 0.3", "mem-fraction-static: 0.4", ONE | REPORT),
    "environment variable": ("SOME: value", "SOME: other", ONE | REPORT),
    "add a level": ("[1, 8], input", "[1, 8, 16], input", points("one", 16) | REPORT),
    "remove a level": ("[1, 8], input", "[1], input", REPORT),
    "sweep length": ("input_tokens: 64", "input_tokens: 128", points("one", 1, 8) | REPORT),
    "add boots": (
        "[1, 8], input",
        "[1, 8], boots: 3, input",
        {f"experiments/one/points/c{level}.boot{boot}.json" for level in (1, 8) for boot in (2, 3)}
        | REPORT,
    ),
    "reference": (
        "    engine: patched\n    sweep",
        "    engine: patched\n    reference: one\n    sweep",
        {f"experiments/{name}/predictions.json" for name in ("one", "two")}
        | {"experiments/two/reference.json"}
        | REPORT,
    ),
    "limits": ("[1, 8], input", "[1, 8], limits: {ttft_ms_p99: 500}, input", REPORT),
    "prompts": ("[1, 8], input", "[1, 8], prompts: chat, input", points("one", 1, 8) | REPORT),
    "repeats of all": (
        "  probes: {suites: [arithmetic]}\n",
        "  probes: {suites: [arithmetic]}\n  sweep: {repeats: 5}\n",
        points("one", 1, 8) | points("two", 1) | points("three", 1) | REPORT,
    ),
    "probe threshold": (
        "    env: {SOME: value}\n",
        "    env: {SOME: value}\n    probes: {pass_share: 0.9}\n",
        from_probe("one", 1, 8) | REPORT,
    ),
    "kernels": (
        "    env: {SOME: value}\n",
        "    env: {SOME: value}\n    kernels: {concurrency: 4}\n",
        kernels("one") | REPORT,
    ),
    "no kernels": (
        "    env: {SOME: value}\n",
        "    env: {SOME: value}\n    kernels: false\n",
        REPORT,
    ),
    "checkpoint revision": (
        "revision: main",
        "revision: v2",
        {"checkpoints/hub/metadata.json", "checkpoints/hub/format.json", "readings/hub--stock.json"}
        | THREE
        | REPORT,
    ),
    "engine version": (
        "patched: {version: 0.5.23, ",
        "patched: {version: 0.5.13.post1, ",
        {"engines/patched/engine.json", "readings/small--patched.json"} | TWO | REPORT,
    ),
    "engine patch list": (
        "patches: [{file: config/patches/announce.patch}]",
        "patches: []",
        {"engines/patched/engine.json", "readings/small--patched.json"} | TWO | REPORT,
    ),
    "requirement met": (
        "    env: {SOME: value}\n",
        "    env: {SOME: value}\n    requires: {}\n",
        set(),
    ),
    "add an experiment": (
        "  large:\n",
        "  four: {checkpoint: small, engine: stock, sweep: {concurrency: [2]}}\n  large:\n",
        from_plan("four", 2) | REPORT,
    ),
    "rename a study": ("  two:\n", "  two:\n    study: other\n", REPORT),
    "name a baseline": ("  two:\n", "  two:\n    baseline: one\n", REPORT),
    "another engine": (
        "  two:\n    checkpoint: small\n    engine: patched\n",
        "  two:\n    checkpoint: small\n    engine: stock\n",
        TWO | REPORT,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_the_config(copy, name):
    old, new, jobs = EDITS[name]
    copy.edit("config/experiments.yaml", old, new)
    assert copy.jobs() == jobs


def test_a_patch_file_is_edited(copy):
    copy.edit("config/patches/announce.patch", "\n", "\n \n")
    assert copy.jobs() == (
        {"engines/patched/engine.json", "readings/small--patched.json"} | TWO | REPORT
    )


def test_a_probe_suite_is_edited(copy):
    path = copy.home / "resources/probes/arithmetic.yaml"
    path.write_text(path.read_text() + "# edited\n")
    assert copy.jobs() == (
        from_probe("one", 1, 8) | from_probe("two", 1) | from_probe("three", 1) | REPORT
    )


def test_a_script_is_touched(copy):
    (copy.home / "workflow/scripts/point.py").touch()
    assert copy.jobs() == points("one", 1, 8) | points("two", 1) | points("three", 1) | REPORT


def test_a_library_module_is_touched(copy):
    for path in (copy.home / "src/bringup").rglob("*.py"):
        path.touch()
    assert copy.jobs() == set()


def test_a_library_module_is_edited(copy):
    path = next((copy.home / "src/bringup/report").glob("*.py"))
    path.write_text(path.read_text() + "\n# edited\n")
    assert copy.jobs() == REPORT


def test_a_table_beside_a_module_is_edited(copy):
    path = next((copy.home / "src/bringup/routing").glob("*.yaml"))
    path.write_text(path.read_text() + "# edited\n")
    plans = ONE | TWO | THREE | {"experiments/large/plan.json"}
    assert copy.jobs() == plans | REPORT


def test_a_local_checkpoint_changes(copy):
    path = copy.home / "resources/arithmetic-moe/bf16/config.json"
    path.write_text(path.read_text() + textwrap.dedent("\n"))
    assert copy.jobs() == (
        {"checkpoints/small/metadata.json", "checkpoints/small/format.json"}
        | {"readings/small--stock.json", "readings/small--patched.json"}
        | ONE
        | TWO
        | REPORT
    )


def test_the_report_is_deleted(copy):
    (copy.home / "results/report.md").unlink()
    try:
        assert copy.jobs() == REPORT
    finally:
        copy.finish()


TURNS = """\
defaults:
  sweep: {concurrency: [1, 8], boots: 3}
checkpoints:
  small: {path: resources/arithmetic-moe/bf16}
engines:
  stock: {version: 0.5.23}
experiments:
  one: {checkpoint: small, engine: stock}
  two: {checkpoint: small, engine: stock, server: {tp: 1}}
"""


def test_boots_take_turns_and_each_server_is_loaded_once(tmp_path):
    copy = Copy(tmp_path)
    (tmp_path / "config/experiments.yaml").write_text(TURNS)
    servers = []
    for output in copy.finish():
        found = re.fullmatch(
            r"experiments/(one|two)/(?:server|probe|kernels|points/c\d(?:\.boot(\d))?)\.json",
            output,
        )
        if found:
            servers.append((found[1], int(found[2] or 1)))
    loads = [server for server, _ in itertools.groupby(servers)]
    first = loads[0][0]
    second = "two" if first == "one" else "one"
    assert loads == [(first, 1), (second, 1), *((x, n) for n in (2, 3) for x in ("one", "two"))]


BROKEN = {
    "prompts with broken lines": (
        "prompts: config/p.jsonl",
        ["config/p.jsonl:2: no JSON", 'config/p.jsonl:3: has neither "prompt"', "right: a text, "],
    ),
    "no such file": ("prompts: config/q.jsonl", ["config/q.jsonl: No such file or directory"]),
    "a client that can't": (
        "client: sglang, rate: 2",
        ["experiments.one.sweep: client sglang sends closed loops of random tokens only"],
    ),
    "a limit on nothing": (
        "limits: {ttft: 1}",
        ["experiments.one.sweep.limits: 'ttft' can't be a name here; right: a latency in points"],
    ),
    "a rate of nothing": ("rate: 0", ["experiments.one.sweep.rate: 0 is not right"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_can_not_be_sent_is_said_before_anything_runs(copy, name):
    setting, said = BROKEN[name]
    (copy.home / "config/p.jsonl").write_text('{"prompt": "Why?"}\n{"prompt":\n{"question": 1}\n')
    copy.edit("config/experiments.yaml", "[1, 8], input", f"[1, 8], {setting}, input")
    done = copy.snakemake("--dry-run", "results/report.md")
    assert done.returncode == 1
    told = done.stderr + done.stdout
    assert all(line in told for line in said), told
    assert "Traceback" not in told
