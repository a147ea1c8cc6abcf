"""Experiments on a real Slurm of two nodes: spread, lost, ended, cancelled, never done twice."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from cluster.slurm import LONGEST_S, until

pytestmark = pytest.mark.timeout(4 * LONGEST_S)

NAMES = {"one", "two", "three", "four"}
STAGES = ["weights", "launch", "probe", "point", "point"]


def stages_of(study, name):
    return [row[1] for row in study.begun() if row[0] == name]


def documents(study, name):
    folder = study.home / "results/experiments" / name
    paths = [folder / "server.json", folder / "probe.json", *folder.glob("points/*.json")]
    return [json.loads(path.read_text()) for path in paths]


def servers():
    """Return the stand-ins for servers that run on this machine."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] == ["sleep", "3600"]
    ]


def finished(study):
    return (study.home / "results/report.md").exists()


def test_experiments_are_spread_and_each_has_one_server(study):
    done = study.run()
    assert done.returncode == 0, done.stderr
    rows = [row for row in study.begun() if row[0] in NAMES]
    assert {row[-2] for row in rows} == {"n1", "n2"}
    for name in NAMES:
        mine = [row for row in rows if row[0] == name]
        assert [row[1] for row in mine] == STAGES
        assert len({(row[-2], row[-1]) for row in mine}) == 1, "one Slurm job, one node"
        assert len({document["boot"] for document in documents(study, name)}) == 1
        (log,) = (study.home / f"results/experiments/{name}/logs").glob("slurm-*.log")
        assert f"Slurm job {mine[0][-1]} on {mine[0][-2]} (" in log.read_text()
    assert not servers()
    study.forget()
    assert study.run().returncode == 0
    assert study.begun() == []


def test_an_edit_of_the_sweep_runs_points_in_one_job_for_each_experiment(study):
    assert study.run().returncode == 0
    study.forget()
    config = study.home / "config/experiments.yaml"
    config.write_text(config.read_text().replace("[1, 2]", "[1, 2], repeats: 4"))
    assert study.run().returncode == 0
    for name in NAMES:
        assert stages_of(study, name) == ["point", "point"]
    assert len({row[-1] for row in study.begun() if row[0] in NAMES}) == len(NAMES)


def test_a_lost_node_loses_nothing_that_was_finished(study):
    release = study.hold("one", "probe")
    process = study.start()
    until(lambda: ["one", "probe"] in [row[:2] for row in study.begun()], "the first probe")
    node = next(row[-2] for row in study.begun() if row[:2] == ["one", "probe"])
    study.slurm.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        release()
        output, _ = process.communicate(timeout=LONGEST_S)
    finally:
        study.slurm.ask("scontrol", "update", f"nodename={node}", "state=resume")
    assert process.returncode == 0, output
    rows = [row for row in study.begun() if row[0] == "one"]
    assert [row[1] for row in rows] == ["weights", "launch", "probe", "probe", "point", "point"]
    assert {row[-2] for row in rows[:3]} == {node}
    assert {row[-2] for row in rows[3:]} == {"n1", "n2"} - {node}
    assert not servers()


def test_a_failed_experiment_is_not_tried_again_and_keeps_what_it_has(study):
    mend = study.fail("two", "probe")
    done = study.run()
    assert done.returncode == 1
    assert "told to fail" in done.stderr
    assert re.findall(r"^ +rule (\w+):$", done.stderr, re.MULTILINE) == ["probe"]
    assert stages_of(study, "two") == ["weights", "launch", "probe"]
    assert all(stages_of(study, name) == STAGES for name in NAMES - {"two"})
    mend()
    study.forget()
    assert study.run().returncode == 0
    assert [row[:2] for row in study.begun() if row[0] in NAMES] == [
        ["two", stage] for stage in STAGES[2:]
    ]
    assert finished(study)


def test_a_job_over_its_time_limit_ends_alone(study):
    nodes = study.home / "profiles/slurm/nodes.yaml"
    nodes.write_text(nodes.read_text().replace("partition: all", "partition: all, max_minutes: 1"))
    release = study.hold("three", "point")
    done = study.run()
    assert done.returncode == 1
    assert "TIMEOUT" in done.stderr, done.stderr
    assert all(len(documents(study, name)) == 4 for name in NAMES - {"three"})
    assert len(documents(study, "three")) == 2
    assert not servers()
    release()
    study.forget()
    assert study.run().returncode == 0
    assert [row[:2] for row in study.begun() if row[0] in NAMES] == [["three", "point"]] * 2


def test_a_cancelled_job_ends_alone(study):
    release = study.hold("one", "point")
    process = study.start()
    until(lambda: ["one", "point"] in [row[:2] for row in study.begun()], "the first point")
    study.slurm.ask("scancel", next(row[-1] for row in study.begun() if row[0] == "one"))
    output, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 1
    assert "CANCELLED" in output
    assert all(stages_of(study, name) == STAGES for name in NAMES - {"one"})
    assert not servers()
    release()
    study.forget()
    assert study.run().returncode == 0
    assert [row[:2] for row in study.begun() if row[0] in NAMES] == [["one", "point"]] * 2


def test_an_interrupted_workflow_takes_its_jobs_with_it(study):
    release = study.hold("one", "point")
    process = study.start()
    until(lambda: ["one", "point"] in [row[:2] for row in study.begun()], "the first point")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=LONGEST_S)
    until(lambda: not study.slurm.jobs() and not servers(), "the end of all jobs")
    release()
    assert study.run().returncode == 0
    assert finished(study)


def test_the_controller_is_restarted(study):
    release = study.hold("one", "probe")
    process = study.start()
    until(lambda: ["one", "probe"] in [row[:2] for row in study.begun()], "the first probe")
    study.slurm.stop("controller")
    release()
    study.slurm.start_controller()
    output, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, output
    assert all(stages_of(study, name) == STAGES for name in NAMES)
    assert not servers()


def test_a_killed_workflow_does_not_send_twice(study):
    release = study.hold("one", "probe")
    process = study.start()
    until(lambda: ["one", "probe"] in [row[:2] for row in study.begun()], "the first probe")
    job = next(row[-1] for row in study.begun() if row[0] == "one")
    process.kill()
    process.wait()
    study.run("--unlock", "--executor", "local", "--cores", "1")
    done = study.run()
    assert done.returncode == 1
    assert f"Slurm jobs of an earlier run still work in {study.home}: " in done.stderr
    assert job in done.stderr
    release()


def test_two_workflows_in_one_folder(study):
    release = study.hold("one", "probe")
    process = study.start()
    until(lambda: ["one", "probe"] in [row[:2] for row in study.begun()], "the first probe")
    done = study.run()
    assert done.returncode == 1
    assert "Directory cannot be locked" in done.stderr
    release()
    output, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, output


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (
            "partition: nowhere",
            "nodes.cpu.partition: there is no partition 'nowhere'; there are: all",
        ),
        ("partitoin: all", "nodes.cpu.partitoin: "),
        ("gpus: {count: 0}", "nodes.cpu: hardware.gpus[0].count: 0 is not a number of GPUs"),
    ],
)
def test_a_wrong_table_of_nodes_is_told_before_anything_runs(study, table, complaint):
    nodes = study.home / "profiles/slurm/nodes.yaml"
    nodes.write_text(nodes.read_text().replace("partition: all", table))
    done = study.run()
    assert done.returncode == 1
    assert sum(complaint in line for line in done.stderr.splitlines()) == 1, done.stderr
    assert study.begun() == []
    assert not study.slurm.jobs()


def test_a_node_without_the_gpus_that_the_table_promises(study):
    nodes = study.home / "profiles/slurm/nodes.yaml"
    nodes.write_text(
        "nodes: {h100: {gpus: {count: 1, name: H100, memory_gib: 79.6}, cores: 1, ram_gib: 4}}\n"
    )
    done = study.run()
    assert done.returncode == 1
    assert ": 1 GPUs were asked for, 0 are to be seen" in done.stderr, done.stderr
    assert not [row for row in study.begun() if row[1] == "launch"]


def test_a_folder_that_is_not_shared(study):
    """One node sees an empty folder where the other sees the study."""
    slurm = study.slurm
    slurm.stop("n2")
    hide = f'mount -t tmpfs none {study.home} && exec "$@"'
    slurm.start_node("n2", "unshare", "--mount", "sh", "-c", hide, "sh")
    slurm.ask("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    try:
        done = study.run()
    finally:
        slurm.ask("scontrol", "update", "nodename=n1", "state=resume")
        slurm.stop("n2")
        slurm.start_node("n2")
        until(lambda: slurm.states() == {"n1": "IDLE", "n2": "IDLE"}, "two idle nodes")
    assert done.returncode == 1
    told = f" It left no log: is {study.home} shared with the nodes?\n"
    assert done.stderr.count(told) == len(NAMES), done.stderr
    assert "rule" not in done.stderr, "a line each, and no flood"
    assert not Path(study.home, "results/experiments/one/server.json").exists()


BEHIND = """\
import os, time
if "SLURMD_NODENAME" in os.environ:
    here = time.time
    time.time = lambda: here() - 60
"""


def test_a_node_whose_clock_is_behind(study):
    (study.home / "src/sitecustomize.py").write_text(BEHIND)
    done = study.run()
    assert done.returncode == 1
    complaint = re.compile(
        r"^(\w+): .*node \S+: its clock is (5\d|60) s behind that of the machine that started "
        "the workflow$",
        re.MULTILINE,
    )
    found = complaint.findall(done.stderr)
    assert {name for name, _ in found} == NAMES, done.stderr
    assert len(found) == len(NAMES), "one line for each"
    assert not [row for row in study.begun() if row[0] in NAMES]


AHEAD = """\
import os, time
if "SLURMD_NODENAME" in os.environ:
    utime = os.utime
    def ahead(path, times=None, **how):
        utime(path, times or (time.time() + 60, time.time() + 60), **how)
    os.utime = ahead
"""


def test_a_node_whose_clock_is_ahead(study):
    (study.home / "src/sitecustomize.py").write_text(AHEAD)
    done = study.run()
    assert done.returncode == 1
    complaint = re.compile(
        r"^(\w+): the clock that dated (\S+) is \d+ s ahead of this machine's; "
        r"set both by one time server\.",
        re.MULTILINE,
    )
    assert {name for name, _ in complaint.findall(done.stderr)} == NAMES, done.stderr
