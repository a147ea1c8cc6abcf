"""Compare fetching and verifying a checkpoint with what huggingface_hub alone reaches.

``python benchmarks/download.py [--rounds N] [--mib SIZE] [--rate MIB_PER_S]`` serves files from a
hub on loopback (a process of its own) and fetches them in turn with ``snapshot_download`` and with
``checkpoint.weights``, which also checks sizes, headers and hashes.  ``--rate`` limits each
connection, as a network does; without it the client's own CPU is what is measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT / "tests/unit"))

import hub as hubs  # noqa: E402
from tensor_files import write, write_folder  # noqa: E402

REPO = "bench/model"
FILES = 24
WORKERS = 8


def serve(folder: Path, rate: float | None) -> None:
    """Be the hub until stdin closes."""
    with hubs.running() as hub:
        hub.rate = rate
        hub.add(REPO, folder)
        print(hub.url, flush=True)
        sys.stdin.read()


def make(folder: Path, mib: int) -> Path:
    """Write a checkpoint of ``FILES`` shards of random bytes."""
    made = write_folder(folder / "origin", {"architectures": ["LlamaForCausalLM"]}, {})
    for number in range(FILES):
        path = write(made / f"model-{number}.safetensors", {f"w{number}": ("U8", [mib * 2**20])})
        with path.open("r+b") as file:
            file.seek(-mib * 2**20, os.SEEK_END)
            for _ in range(mib):
                file.write(os.urandom(2**20))
    return made


def main() -> int:
    """Run the rounds and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=24, help=f"size of each of {FILES} files")
    parser.add_argument("--rate", type=float, help="MiB/s of each connection")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    rate = given.rate * 2**20 if given.rate else None
    if given.serve:
        serve(given.serve, rate)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder), given.mib)
        limit = ["--rate", str(given.rate)] if given.rate else []
        command = [sys.executable, __file__, "--serve", str(made), *limit]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as hub:
            assert hub.stdout is not None
            os.environ["HF_ENDPOINT"] = hub.stdout.readline().strip()
            compare(Path(folder), given.rounds, FILES * given.mib)
            assert hub.stdin is not None
            hub.stdin.close()
    return 0


def compare(folder: Path, rounds: int, mib: int) -> None:
    """Fetch with both, each time into an empty cache, and print the medians."""
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["BRINGUP_CACHE"] = str(folder / "cache")
    from huggingface_hub import constants, snapshot_download

    from bringup import checkpoint

    constants.HF_HUB_CACHE = str(folder / "hub")
    metadata = checkpoint.metadata({"repo": REPO}, name="bench")
    commit = metadata["source"]["commit"]

    def bare() -> None:
        snapshot_download(REPO, revision=commit, max_workers=WORKERS)

    def ours() -> None:
        checkpoint.weights(metadata)

    rates: dict[str, list[float]] = {"huggingface_hub alone": [], "checkpoint.weights": []}
    for _ in range(rounds):
        for name, fetch in zip(rates, (bare, ours), strict=True):
            shutil.rmtree(folder / "hub", ignore_errors=True)
            shutil.rmtree(folder / "cache", ignore_errors=True)
            started = time.perf_counter()
            fetch()
            rates[name].append(mib / (time.perf_counter() - started))
    for name, each in rates.items():
        print(f"{name:22} {statistics.median(each):7.0f} MiB/s  {[round(rate) for rate in each]}")
    alone, with_checks = rates.values()
    ratio = statistics.median(o / b for o, b in zip(with_checks, alone, strict=True))
    started = time.perf_counter()
    checkpoint.weights(metadata)
    again = time.perf_counter() - started
    print(f"ratio {ratio:.2f}; everything there already: {again:.2f} s")


if __name__ == "__main__":
    sys.exit(main())
