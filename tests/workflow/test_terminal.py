"""What a run and a dry run say on the terminal: a line a job, in words, and no flood."""

import re

import pytest

from project import STAND_IN, Copy

ONE = """\
checkpoints:
  small: {path: resources/arithmetic-moe/bf16}
engines:
  stock: {version: 0.5.23}
experiments:
"""
EXPERIMENT = "  {name}: {{checkpoint: small, engine: stock, sweep: {{concurrency: [1, 8]}}}}\n"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A project with one experiment, whose stages do nothing but write an empty document."""
    copy = Copy(tmp_path_factory.mktemp("progress"))
    config = copy.home / "config/experiments.yaml"
    config.write_text(ONE + EXPERIMENT.format(name="alone"))
    for script in (copy.home / "workflow/scripts").glob("*.py"):
        script.write_text(STAND_IN + script.read_text())
    return copy


def lines(done):
    assert done.returncode == 0, done.stderr + done.stdout
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in done.stderr.splitlines()]


def test_a_run_says_what_runs_how_long_it_took_and_what_is_left(copy):
    said = lines(copy.snakemake("results/report.md"))
    assert "13 jobs to do" in said
    assert "alone: point C = 8 (for the first time)" in said
    assert [line for line in said if re.fullmatch(r"report done in [\d.]+ s; all done", line)]
    assert not [line for line in said if "\x1b" in line or line.startswith(("rule ", "    "))]

    point = "results/experiments/alone/points/c8.json"
    again = lines(copy.snakemake("results/report.md", "-R", point))
    assert [line for line in again if re.fullmatch(r"2 jobs to do, about \d+ s of work", line)]
    timed = r"alone: point C = 8 \([\d.]+ s last time\)"
    assert [line for line in again if re.fullmatch(timed, line)]
    assert [line for line in again if re.match(r"alone: point C = 8 done in .*; 1 job left", line)]


def test_a_job_that_fails_shows_the_end_of_its_log(copy):
    script = copy.home / "workflow/scripts/probe.py"
    text = script.read_text()
    script.write_text(
        "from pathlib import Path\nPath(snakemake.log[0]).write_text('it broke')\n1 / 0"
    )
    done = copy.snakemake("results/experiments/alone/probe.json")
    script.write_text(text)
    assert done.returncode == 1
    assert "Error in rule probe" in done.stderr and "it broke" in done.stderr


def test_a_dry_run_of_a_hundred_experiments_fits_on_a_screen(copy):
    config = copy.home / "config/experiments.yaml"
    names = ["alone", *(f"e{number}" for number in range(99))]
    config.write_text(ONE + "".join(EXPERIMENT.format(name=name) for name in names))
    done = copy.snakemake("-n", "results/report.md")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) <= 24
    (line,) = [line for line in said if "and 93 more" in line]
    assert line.startswith("  experiments e")
    to_do = said[said.index(line) + 1]
    assert {"plan", "probe", "point C = 1 and 8", "kernels"} <= set(
        to_do.strip().removesuffix(" (not there yet)").split(", ")
    )
