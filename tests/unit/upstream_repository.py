"""A git repository of SGLang's shape, with pull requests under refs/pull/N/head."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PACKAGE = "python/sglang"


def body(name: str = "value", *, changed: dict[int, str] | None = None) -> str:
    """Return a Python file of forty assignments to ``name``, some of them changed."""
    lines = {number: f"{name}_{number:02} = {number}" for number in range(40)}
    return "\n".join({**lines, **(changed or {})}.values()) + "\n"


class Upstream:
    """The repository; commits are made on branches by name."""

    def __init__(self, folder: Path, *, filters: bool = True) -> None:
        self.folder = folder
        self.url = folder.as_uri()
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        with (folder / ".git/config").open("a") as config:
            config.write(f"[uploadpack]\nallowAnySHA1InWant\nallowFilter = {filters}\n")
        self._clock = 1_700_000_000
        self.commit(
            {
                f"{PACKAGE}/__init__.py": "__version__ = '0.5.13'\n",
                f"{PACKAGE}/srt/one.py": body(),
                f"{PACKAGE}/srt/two.py": body("other"),
                "docs/guide.md": "guide\n",
                "sgl-kernel/csrc/gemm.cu": "// kernel\n",
            },
            "start",
        )

    def git(self, *arguments: str) -> str:
        """Run git here and return what it prints."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments],
            cwd=self.folder,
            env={**clean, **self._dates(), "GIT_CONFIG_GLOBAL": os.devnull},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def _dates(self) -> dict[str, str]:
        when = f"{getattr(self, '_clock', 0)} +0000"
        return {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}

    def commit(self, files: dict[str, str | bytes | None], message: str) -> str:
        """Write (or with None remove) files, commit, and return the commit."""
        self._clock += 60
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", message)
        return self.git("rev-parse", "HEAD")

    def pull_request(
        self, number: int, files: dict[str, str | bytes | None], *, start: str = "main"
    ) -> str:
        """Open a pull request that changes files; return its head."""
        self.git("checkout", "--quiet", "-B", f"pr-{number}", start)
        head = self.commit(files, f"pull request {number}")
        self.git("update-ref", f"refs/pull/{number}/head", head)
        self.git("checkout", "--quiet", "main")
        return head

    def release(self, version: str) -> None:
        """Tag the main branch as a release."""
        self.git("tag", f"v{version}", "main")

    def install(self, target: Path) -> Path:
        """Write the package as it is on the current branch to ``target``, as a wheel would."""
        archive = subprocess.run(
            ["git", "archive", f"HEAD:{PACKAGE}"], cwd=self.folder, capture_output=True, check=True
        )
        target.mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
        return target
