"""Pack an SGLang and this workflow for a machine without network: see docs/offline.md.

    python envs/offline/pack.py --provided provided.txt --out bundle

Needs uv, a network and nothing of the target: neither its Python nor a GPU.  What the target's
Python has already (``provided.txt``, as ``pip list --format=freeze`` there prints it, or names
alone) is left out; so is what ``trim.yaml`` names.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
KEPT_OF_DIST_INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")
"""Files of a package's own record that programs read (tvm_ffi finds libraries by RECORD)."""

LARGE = 300_000
"""Bytes from which on a library is worth stripping."""


def plain(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def provided(file: Path) -> set[str]:
    """Return the names in the target's list of packages, versions or not."""
    lines = (line.split("#")[0].strip() for line in file.read_text().splitlines())
    return {plain(re.split(r"[=<>!~ @;\[]", line)[0]) for line in lines if line}


def requirements(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and lines of each requirement of a pip requirements file, its hashes included."""
    joined = re.sub(r"\\\n", "\\\\\0", text)
    for line in joined.splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "-")):
            yield plain(re.split(r"[=<>!~ @;\[]", line)[0]), line.replace("\0", "\n")


def wanted(text: str, has: set[str], trim: dict[str, Any]) -> str:
    """Return those requirements of a lock file that go into the bundle."""
    dropped = {plain(name) for names in trim["drop"].values() for name in names}
    leave = (has - {plain(name) for name in trim["always"]}) | dropped
    return "\n".join(lines for name, lines in requirements(text) if name not in leave) + "\n"


def install(lock: str, folder: Path, *, python: str, platform: str) -> None:
    """Install the requirements ``lock``, and nothing that they need, into ``folder``."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(lock)
        file.flush()
        target = ["--target", str(folder), "--python-version", python]
        target += ["--python-platform", platform]
        uv("pip", "install", "--quiet", "--no-deps", "--require-hashes", *target, "-r", file.name)


def trimmed(folder: Path, trim: dict[str, Any]) -> None:
    """Leave out of an installed folder what the target has no use for."""
    for pattern in (pattern for patterns in trim["files"].values() for pattern in patterns):
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(folder / "bin", ignore_errors=True)
    for cache in [*folder.rglob("__pycache__")]:
        shutil.rmtree(cache)
    for each in distributions(path=[str(folder)]):
        for path in _record(each).iterdir():
            if path.name not in KEPT_OF_DIST_INFO:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in folder.rglob("*.so*"):
        kept = path.relative_to(folder).parts[0] in trim["keep_symbols"]
        if path.is_file() and path.stat().st_size > LARGE and not kept:
            strip(path)


def _record(distribution: Distribution) -> Path:
    return Path(str(distribution._path))  # type: ignore[attr-defined]


def strip(library: Path) -> None:
    """Remove debug symbols; the file is a link to uv's cache, so a copy takes its place."""
    copy = library.with_name(f".{library.name}")
    done = subprocess.run(["strip", "--strip-debug", "-o", copy, library], capture_output=True)
    if done.returncode == 0:
        copy.replace(library)
    copy.unlink(missing_ok=True)


def archive(out: Path, base: Path, names: Iterable[str], *, threads: int) -> Path:
    """Write ``names`` below ``base`` to a tar.xz, the same bytes for the same content."""
    order = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
    packer = f"xz -T{threads} --lzma2=preset=9,dict=128MiB"
    tar = ["tar", *order, "-I", packer, "-cf", str(out), "-C", str(base), *names]
    subprocess.run(tar, check=True)
    print(f"{out}  {out.stat().st_size / 2**20:.1f} MiB")
    return out


def uv(*arguments: str) -> str:
    """Run uv and return what it prints."""
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.is_file() else "uv"
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True, cwd=PROJECT)
    if done.returncode:
        raise SystemExit(f"uv {arguments[0]} failed")
    return done.stdout


def pack(given: argparse.Namespace) -> None:
    """Make the archives."""
    trim = yaml.safe_load((HERE / "trim.yaml").read_text(encoding="utf-8"))
    has = provided(given.provided)
    lock = PROJECT / "envs" / f"sglang-{given.sglang}.txt"
    if not lock.is_file():
        raise SystemExit(f"{lock} is missing: envs/README.md says how to make it")
    ours = uv("export", "--frozen", "--no-dev", "--no-emit-project", "--format=requirements-txt")
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bringup-pack-", dir=given.out) as scratch:
        base = Path(scratch)
        for name, text in (("engine", lock.read_text()), ("workflow", ours)):
            folder = base / name
            install(wanted(text, has, trim), folder, python=given.python, platform=given.platform)
            trimmed(folder, trim)
            archive(given.out / f"{name}.tar.xz", base, [name], threads=given.threads)
        project = base / "project"
        project.mkdir()
        files = subprocess.run(
            ["git", "archive", "HEAD"], cwd=PROJECT, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-xf", "-", "-C", str(project)], check=True, input=files.stdout)
        revision = ["git", "rev-parse", "HEAD"]
        with (project / "REVISION").open("wb") as file:
            subprocess.run(revision, cwd=PROJECT, check=True, stdout=file)
        archive(given.out / "project.tar.xz", base, ["project"], threads=given.threads)
        if given.kernels:
            archive(
                given.out / "kernels.tar.xz",
                given.kernels.parent,
                [given.kernels.name],
                threads=given.threads,
            )
    shutil.copy2(HERE / "unpack.sh", given.out)


def main() -> None:
    """Read the arguments and pack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--provided", type=Path, required=True, help="the target's packages")
    parser.add_argument("--out", type=Path, required=True, help="folder for the archives")
    parser.add_argument("--sglang", default="0.5.16", help="release, with a lock file in envs/")
    parser.add_argument("--python", default="3.12", help="the target's Python")
    parser.add_argument("--platform", default="x86_64-manylinux_2_35", help="as uv names it")
    parser.add_argument(
        "--kernels", type=Path, help="folder of kernels built ahead (docs/offline.md)"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    pack(parser.parse_args())


if __name__ == "__main__":
    main()
