"""Which kind of node an experiment runs on, what is asked for, and what is strange about a node."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bringup import cluster, node
from bringup.config import ConfigError

TABLE = {
    "a100": {
        "gpus": {"count": 4, "name": "A100", "memory_gib": 39.5},
        "cores": 64,
        "ram_gib": 500,
        "partition": "old",
    },
    "h100": {
        "gpus": {"count": 8, "name": "H100", "memory_gib": 79.6},
        "cores": 96,
        "ram_gib": 1000,
        "partition": "gpu",
        "gpu_model": "h100",
        "constraint": "nvlink",
        "max_minutes": 60,
    },
    "cpu": {"cores": 32, "ram_gib": 100},
}


@pytest.fixture(scope="module")
def nodes():
    return cluster.load(TABLE, file="nodes.yaml")


@pytest.mark.parametrize(
    ("requires", "gpus", "kind"),
    [
        ({}, 1, "a100"),
        ({"gpu_memory_gib": 80 * 0.99}, 1, "h100"),
        ({"gpus": 8}, 8, "h100"),
        ({"gpus": 1}, 8, "h100"),  # what the server spreads over counts too
        ({"capability": "9.0"}, 2, "h100"),
        ({"capability": ["8.0"]}, 2, "a100"),
        ({"ram_gib": 600}, 1, "h100"),
    ],
)
def test_the_first_kind_that_an_experiment_fits_on(nodes, requires, gpus, kind):
    assert nodes.choose(requires, gpus).name == kind


def test_no_kind_will_do_and_each_says_why(nodes):
    why = cluster.refusal(nodes.choose({"gpus": 16}, 16))
    assert "nodes a100: needs 16 GPUs; this machine has 4 × A100" in why
    assert "nodes cpu: needs 16 GPUs; this machine has none" in why


def test_one_engine_is_not_for_gpus_and_for_the_cpu(nodes):
    gpu, cpu = nodes.kinds["h100"], nodes.kinds["cpu"]
    assert (
        cluster.torn({"a": "x", "b": "y", "c": "x"}, {"a": gpu, "b": cpu, "c": "why not"}) is None
    )
    said = cluster.torn({"a": "x", "b": "x"}, {"a": gpu, "b": cpu})
    assert said.startswith("engines.x: used on nodes with and without GPUs")


def test_what_is_asked_for_is_the_share_of_a_node_that_goes_with_the_gpus(nodes):
    assert nodes.kinds["h100"].request(2, 45) == {
        "partition": "gpu",
        "gpu_model": "h100",
        "constraint": "nvlink",
        "gpu": 2,
        "cpus_per_task": 24,
        "mem_mb": int(1000 * 1024 * 0.95 * 2 / 8),
        "runtime": 45,
    }
    assert nodes.kinds["h100"].request(8, 90)["runtime"] == 60
    assert nodes.kinds["cpu"].request(0, 90) == {
        "cpus_per_task": 32,
        "mem_mb": int(100 * 1024 * 0.95),
        "runtime": 90,
    }


def test_time_limits_are_three_times_the_estimate_and_never_short():
    assert cluster.minutes(1800, gpus=0) == 90
    assert cluster.minutes(5, gpus=0) == 10
    assert cluster.minutes(1800, gpus=4) == 90 + 45


def test_experiments_run_there_so_it_is_no_described_machine(nodes):
    machine = nodes.hardware()
    assert not machine["described"]
    assert machine["architecture"] == "sm90"
    assert len(machine["gpus"]) == 12
    assert nodes.kinds["cpu"].hardware["cpu"]["cores"] == 32
    assert nodes.kinds["cpu"].hardware["ram_gib"] == 100


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({}, "nodes.yaml: nodes: "),
        ({"x": {"cores": 1}}, "nodes.yaml: nodes.x: "),
        ({"x": {"cores": 0, "ram_gib": 1}}, "nodes.yaml: nodes.x.cores: "),
        ({"x": {"cores": 1, "ram_gib": 1, "partitoin": "a"}}, "did you mean 'partition'?"),
        (
            {"x": {"cores": 1, "ram_gib": 1, "gpus": {"name": "H100", "memory_gib": 39.5}}},
            "nodes.yaml: nodes.x: hardware.gpus[0]: one H100 has ",
        ),
    ],
)
def test_a_wrong_table_is_one_line_that_says_where(table, complaint):
    with pytest.raises(ConfigError) as error:
        cluster.load(table, file="nodes.yaml")
    (line,) = error.value.problems
    assert complaint in line


def gpus(count, name="NVIDIA H100 80GB HBM3", capability="9.0", memory=79.6):
    gpu = {"name": name, "capability": capability, "memory_gib": memory, "uuid": "GPU-1"}
    return {"gpus": [gpu] * count}


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (gpus(2), None),
        (gpus(8), None),
        (gpus(2, memory=79.2), None),
        (gpus(1), "2 GPUs were asked for, 1 are to be seen"),
        (gpus(2, "NVIDIA A100", "8.0"), "it has NVIDIA A100; the table of nodes says otherwise"),
        (gpus(2, "NVIDIA H200", memory=139.8), "it has NVIDIA H200; "),
    ],
)
def test_a_node_that_is_not_what_the_table_says(nodes, found, complaint):
    said = cluster.strangeness(nodes.kinds["h100"], found, 2)
    assert (complaint in said) if complaint else said is None


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/tmp/run", None), ("/scratch/me/run", "lustre"), ("/home/me", "nfs4"), ("/home2/me", None)],
)
def test_locks_lie_on_a_disk_of_the_node(folder, kind):
    mounted = [
        SimpleNamespace(mountpoint=place, fstype=fstype)
        for place, fstype in (("/", "ext4"), ("/scratch", "lustre"), ("/home", "nfs4"))
    ]
    said = cluster.shared(Path(folder), mounted)
    assert f"lies on {kind}; set BRINGUP_RUN to a local folder" in said if kind else said is None


def test_clocks(tmp_path):
    assert cluster.late(1000.0, now=1300.0) is None  # it waited in the queue
    assert cluster.late(1000.0, now=999.0) is None
    assert cluster.late(1000.0, now=940.0).startswith("its clock is 60 s behind")
    path = tmp_path / "made"
    path.touch()
    os.utime(path, (1000.0, 1000.0))
    assert cluster.early(path, now=999.0) is None
    assert "is 60 s ahead of this machine's" in cluster.early(path, now=940.0)


@pytest.mark.parametrize(
    ("sent", "gpus", "code", "complaint"),
    [(0, 0, 0, ""), (4e9, 0, 1, "its clock is"), (0, 64, 1, "64 GPUs were asked for")],
)
def test_asked_on_the_node(tmp_path, monkeypatch, capsys, sent, gpus, code, complaint):
    table = tmp_path / "nodes.yaml"
    table.write_text("nodes: {cpu: {cores: 1, ram_gib: 1}}\n")
    words = f"node --kind cpu --gpus {gpus} --sent {sent} --nodes {table}".split()
    monkeypatch.setattr(sys, "argv", words)
    assert node.main() == code
    error = capsys.readouterr().err
    assert error.startswith("node ") and complaint in error if complaint else not error


def test_a_kind_that_the_table_no_longer_has(tmp_path, monkeypatch, capsys):
    table = tmp_path / "nodes.yaml"
    table.write_text("nodes: {cpu: {cores: 1, ram_gib: 1}}\n")
    words = f"node --kind gone --gpus 0 --sent 0 --nodes {table}".split()
    monkeypatch.setattr(sys, "argv", words)
    assert node.main() == 2
    assert "gone" in capsys.readouterr().err
