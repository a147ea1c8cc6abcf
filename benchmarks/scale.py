"""How the workflow's own time and memory grow with the number of experiments.

    python benchmarks/scale.py [10 100 1000]

For each number, a study of that many experiments at six levels each, in a temporary copy of the
project: parsing and a dry run of everything, and a run in which there is nothing to do.  Nothing
is measured: outputs are empty files that Snakemake is told are up to date.  Seconds are those of
a core, which is what it takes on a machine that does nothing else: Snakemake uses one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from project import Copy

LEVELS = (1, 2, 4, 8, 16, 32)
MOST_S, MOST_MIB = 60.0, 1024.0
OWN_WORDS = ("--workflow-profile", "none")  # Snakemake's name every output
CONFIG = """\
checkpoints: {{small: {{path: resources/arithmetic-moe/bf16}}}}
engines: {{stock: {{version: 0.5.23}}}}
defaults: {{checkpoint: small, engine: stock, sweep: {{concurrency: {levels}}}}}
experiments:
{experiments}"""


def project(home: Path, count: int) -> Copy:
    """Return a copy of the project with ``count`` experiments in its config."""
    home.mkdir()
    copy = Copy(home)
    entries = (f"  e{n:04}: {{server: {{max-total-tokens: {8192 + n}}}}}\n" for n in range(count))
    (home / "config/experiments.yaml").write_text(
        CONFIG.format(levels=list(LEVELS), experiments="".join(entries))
    )
    return copy


def measured(copy: Copy, *arguments: str) -> tuple[float, float, str]:
    """Run Snakemake; return its CPU seconds, the most MiB that it held, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(copy.home / "src"), "CUDA_VISIBLE_DEVICES": ""}
    with (copy.home / "printed").open("w+") as printed:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "snakemake",
                "--cores",
                "1",
                *arguments,
                "--",
                "results/report.md",
            ],
            cwd=copy.home,
            env=environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        _, status, used = os.wait4(process.pid, 0)
        printed.seek(0)
        text = printed.read()
    if status:
        raise SystemExit(f"snakemake {' '.join(arguments)} failed:\n{text[-3000:]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, text


def finish(copy: Copy, dry_run: str) -> None:
    """Make every output, empty, and tell Snakemake that it is up to date."""
    for line in re.findall(r"^    output: (.+)$", dry_run, re.MULTILINE):
        for output in line.split(", "):
            path = copy.home / output
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
    measured(copy, "--touch", "--quiet", "all")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", type=int, nargs="*", default=[10, 100, 1000])
    given = parser.parse_args()
    print("| experiments | jobs | dry run, s | MiB | nothing to do, s | MiB |")
    print("|---:|---:|---:|---:|---:|---:|", flush=True)
    slow = []
    for count in given.counts:
        with tempfile.TemporaryDirectory(prefix="bringup-scale-") as folder:
            copy = project(Path(folder, "copy"), count)
            dry_s, dry_mib, text = measured(copy, "--dry-run", *OWN_WORDS)
            finish(copy, text)
            idle_s, idle_mib, text = measured(copy)
            if "Nothing to be done" not in text:
                raise SystemExit(f"there was something to do:\n{text[-2000:]}")
        jobs = count * (len(LEVELS) + 5) + 6
        print(f"| {count} | {jobs} | {dry_s:.1f} | {dry_mib:.0f} | {idle_s:.1f} | {idle_mib:.0f} |")
        sys.stdout.flush()
        if max(dry_s, idle_s) > MOST_S or max(dry_mib, idle_mib) > MOST_MIB:
            slow.append(count)
    if slow:
        raise SystemExit(f"over {MOST_S:g} s or {MOST_MIB:g} MiB at {slow} experiments")


if __name__ == "__main__":
    main()
