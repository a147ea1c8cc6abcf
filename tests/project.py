"""A copy of the project in a folder of its own, to edit and to dry-run in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
COPIED = ("Snakefile", "config", "envs", "profiles", "src", "workflow")
STAND_IN = """\
from pathlib import Path

for output in snakemake.output:
    Path(output).write_text("{}")
raise SystemExit(0)
"""


OWN_WORDS = ("--workflow-profile", "none")
"""What has Snakemake speak for itself: its own words name every output."""


class Copy:
    """The project copied to ``home``; its own library is the one that runs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        for name in COPIED:
            source = PROJECT / name
            skip = shutil.ignore_patterns("__pycache__")
            if source.is_dir():
                shutil.copytree(source, home / name, ignore=skip)
            else:
                shutil.copy2(source, home / name)
        (home / "resources").mkdir()
        for path in (PROJECT / "resources").iterdir():
            if path.name != "arithmetic-moe":
                shutil.copytree(path, home / "resources" / path.name)
        model = home / "resources/arithmetic-moe"
        model.mkdir()
        for name in ("bf16", "make"):
            shutil.copytree(PROJECT / "resources/arithmetic-moe" / name, model / name)
        for path in (PROJECT / "resources/arithmetic-moe").glob("*.json"):
            shutil.copy2(path, model)

    def snakemake(
        self, *arguments: str, timeout_s: float = 120, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake in the copy, as on a machine without a GPU."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.home / "src"),
            "BRINGUP_CACHE": str(self.home / ".cache"),
            "CUDA_VISIBLE_DEVICES": "",
            **extra,
        }
        return subprocess.run(
            [sys.executable, "-m", "snakemake", "--cores", "1", *arguments],
            cwd=self.home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def jobs(self, *targets: str) -> set[str]:
        """Return what a run would do now: the first output of each job, below results/."""
        done = self.snakemake("--dry-run", *OWN_WORDS, *(targets or ("results/report.md",)))
        assert done.returncode == 0, done.stderr + done.stdout
        outputs = re.findall(r"^    output: ([^\s,]+)", done.stdout, re.MULTILINE)
        return {output.removeprefix("results/") for output in outputs}

    def finish(self) -> list[str]:
        """Make every output, by scripts that end after writing an empty document.

        Returns the first output of each job, below results/, in the order in which they ran.
        """
        scripts = sorted((self.home / "workflow/scripts").glob("*.py"))
        for script in scripts:
            script.write_text(STAND_IN + script.read_text())
        done = self.snakemake(*OWN_WORDS, "results/report.md")
        assert done.returncode == 0, done.stderr + done.stdout
        for script in scripts:
            shutil.copy2(PROJECT / "workflow/scripts" / script.name, script)
        ran = re.findall(r"^    output: ([^\s,]+)", done.stdout + done.stderr, re.MULTILINE)
        return [output.removeprefix("results/") for output in ran]

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace ``old``, which must stand there, by ``new``."""
        text = (self.home / path).read_text()
        assert old in text, f"{path} doesn't hold {old!r}"
        (self.home / path).write_text(text.replace(old, new, 1))
