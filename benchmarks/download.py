"""Compare fetching and verifying a checkpoint with what huggingface_hub alone reaches.

``python benchmarks/download.py [--rounds N] [--mib SIZE] [--rate MIB_PER_S]`` serves files from a
hub on loopback (a process of its own) and fetches them in turn with ``snapshot_download`` and with
``checkpoint.weights``, once without its hashing and once whole.  ``--rate`` limits each connection,
as a network does; without it the CPU is the limit, which hashing shares with client and hub.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT / "tests/unit"))

import hub as hubs  # noqa: E402
from tensor_files import write, write_folder  # noqa: E402

from bringup import checkpoint  # noqa: E402
from bringup.checkpoint import hashes  # noqa: E402

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

    constants.HF_HUB_CACHE = str(folder / "hub")
    metadata = checkpoint.metadata({"repo": REPO}, name="bench")
    commit = metadata["source"]["commit"]

    def bare() -> None:
        snapshot_download(REPO, revision=commit, max_workers=WORKERS)

    computed = hashes.computed

    def from_name(path: Path, *report: object) -> str:
        """Take the name of a blob for its hash, which it is."""
        return path.name if len(path.name) == 64 else computed(path)

    def unhashed() -> None:
        with mock.patch.object(hashes, "computed", from_name):
            checkpoint.weights(metadata)

    def whole() -> None:
        checkpoint.weights(metadata)

    ways = {"huggingface_hub alone": bare, "weights, not hashed": unhashed, "weights": whole}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, fetch in ways.items():
            shutil.rmtree(folder / "hub", ignore_errors=True)
            shutil.rmtree(folder / "cache", ignore_errors=True)
            started = time.perf_counter()
            fetch()
            rates[name].append(mib / (time.perf_counter() - started))
    alone = rates["huggingface_hub alone"]
    for name, each in rates.items():
        ratio = statistics.median(rate / bare for rate, bare in zip(each, alone, strict=True))
        print(f"{name:22} {statistics.median(each):6.0f} MiB/s  ratio {ratio:.2f}")
    started = time.perf_counter()
    checkpoint.weights(metadata)
    print(f"everything there already: {time.perf_counter() - started:.2f} s")
    hashing(folder / "origin", rounds)


def hashing(folder: Path, rounds: int) -> None:
    """Print how fast one core hashes files, beside the same bytes hashed from memory."""
    files = sorted(folder.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in files)
    piece = os.urandom(hashes.CHUNK)

    def from_files() -> None:
        for path in files:
            hashes.computed(path)

    def from_memory() -> None:
        digest = hashlib.sha256()
        for _ in range(size // len(piece)):
            digest.update(piece)

    rates: dict[str, list[float]] = {"files": [], "memory": []}
    for _ in range(rounds):
        for name, run in (("files", from_files), ("memory", from_memory)):
            started = time.process_time()
            run()
            rates[name].append(size / (time.process_time() - started) / 1e9)
    ratio = statistics.median(a / b for a, b in zip(rates["files"], rates["memory"], strict=True))
    print(
        f"hashing files, one core: {statistics.median(rates['files']):.2f} GB/s "
        f"(best {max(rates['files']):.2f}), {ratio:.2f} of hashing from memory"
    )


if __name__ == "__main__":
    sys.exit(main())
