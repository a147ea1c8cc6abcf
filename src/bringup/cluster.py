"""A cluster's kinds of nodes: which one an experiment runs on, and what to ask the scheduler for.

The table of kinds belongs to the site (``profiles/slurm/nodes.yaml``), an experiment states only
what it ``requires``.  Planning happens where the workflow is started, which need not have a GPU,
so a kind is described as the config's ``hardware:`` describes a machine; the job that then runs
on a node looks whether the node is what the table says (`strangeness`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from bringup import hardware, paths
from bringup.artifact import Document
from bringup.config import schema as checks
from bringup.config.source import ConfigError

SCHEMA = paths.PROJECT / "workflow" / "schemas" / "nodes.schema.yaml"

CLOCKS_S = 2.0
"""How far the clocks of two machines may differ: Snakemake compares times of files."""

FIRST_START_MIN = 45
"""Minutes that a first start on GPUs may take longer: 30 of silence are waited for
(`bringup.serving.startup`)."""

MEMORY_SHARE = 0.95
"""Share of a node's memory that is asked for when all of it is meant; the system has the rest."""

SHARED_FILE_SYSTEMS = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "afs", "glusterfs")

WORDS = ("partition", "constraint", "gpu_model", "account", "qos", "reservation")
"""What a kind may tell the scheduler, in the scheduler's own words."""


@dataclass(frozen=True)
class Kind:
    """Nodes that are alike.

    Attributes:
        name: what people call them.
        hardware: their fingerprint, as ``hardware.json`` holds one.
        words: what the scheduler must be told to get one, by the names in `WORDS`.
        cpus: cores that one experiment gets for each GPU, or in all where there is no GPU.
        max_minutes: the longest time limit that may be asked for; None is no bound.
    """

    name: str
    hardware: Document
    words: Mapping[str, str]
    cpus: int
    max_minutes: int | None

    def request(self, gpus: int, minutes: int) -> dict[str, int | str]:
        """Return what a job of ``gpus`` GPUs for ``minutes`` minutes asks the scheduler for.

        Memory is the share of the node's that the GPUs are of its GPUs; without GPUs, all of it.
        """
        present = len(self.hardware["gpus"])
        share = gpus / present if present else 1.0
        asked: dict[str, int | str] = dict(self.words)
        asked["mem_mb"] = int(self.hardware["ram_gib"] * 1024 * MEMORY_SHARE * share)
        asked["cpus_per_task"] = self.cpus * max(gpus, 1)
        asked["runtime"] = min(minutes, self.max_minutes or minutes)
        if gpus:
            asked["gpu"] = gpus
        return asked


@dataclass(frozen=True)
class Cluster:
    """The kinds of nodes, in the order in which they are tried."""

    kinds: Mapping[str, Kind]

    def hardware(self) -> Document:
        """Return the fingerprint of one node of each kind, taken together."""
        each = [kind.hardware for kind in self.kinds.values()]
        gpus = [gpu for one in each for gpu in one["gpus"]]
        counted = Counter(gpu["capability"] for gpu in gpus)
        newest = hardware.architecture(counted.most_common(1)[0][0]) if gpus else hardware.CPU
        return {**each[0], "gpus": gpus, "architecture": newest}

    def choose(self, requires: Mapping[str, Any], gpus: int) -> Kind | str:
        """Return the first kind with ``gpus`` GPUs that an experiment can run on, or why none is.

        A kind that meets ``requires`` but has too few GPUs is the answer where no other will do:
        the plan then refuses the experiment in words of its own.
        """
        refusals = {
            kind.name: hardware.screen(requires, kind.hardware) for kind in self.kinds.values()
        }
        met = [kind for kind in self.kinds.values() if not refusals[kind.name]]
        if met:
            return next((kind for kind in met if len(kind.hardware["gpus"]) >= gpus), met[0])
        return "; ".join(f"nodes {name}: {why}" for name, why in refusals.items())


def load(data: Mapping[str, Any], *, file: str) -> Cluster:
    """Return the cluster that a table of nodes describes.

    Args:
        data: by name, ``{gpus: {count, name, capability, memory_gib}, cpus, ram_gib, partition,
            constraint, gpu_model, account, qos, reservation, max_minutes}``.
        file: where it stands, for messages.

    Raises:
        ConfigError: one line for every problem.
    """
    schema = yaml.safe_load(SCHEMA.read_text(encoding="utf-8"))
    wrong = [
        f"{file}: nodes.{'.'.join(map(str, path))}: {message}".replace("nodes.: ", "nodes: ")
        for path, message in checks.problems(data, schema)
    ]
    if wrong:
        raise ConfigError(wrong)
    kinds = {}
    for name, row in data.items():
        try:
            kinds[name] = _kind(name, row)
        except ValueError as error:
            raise ConfigError([f"{file}: nodes.{name}: {error}"]) from None
    return Cluster(kinds)


def _kind(name: str, row: Mapping[str, Any]) -> Kind:
    found = hardware.fingerprint({"gpus": row.get("gpus", [])})
    return Kind(
        name=name,
        hardware={
            **found,
            "described": False,  # experiments run there, unlike on what `hardware:` describes
            "cpu": {**found["cpu"], "cores": row["cores"]},
            "ram_gib": float(row["ram_gib"]),
        },
        words={word: str(row[word]) for word in WORDS if word in row},
        cpus=row.get("cpus") or max(1, row["cores"] // max(1, len(found["gpus"]))),
        max_minutes=row.get("max_minutes"),
    )


def refusal(choice: Kind | str) -> str | None:
    """Return why no kind of node will do, of what `Cluster.choose` answered; None if one does."""
    return choice if isinstance(choice, str) else None


def torn(engines: Mapping[str, str], choices: Mapping[str, Kind | str]) -> str | None:
    """Say which engine experiments on nodes with and without GPUs would share, or None.

    Args:
        engines: by experiment, the name of its engine: it is built either for GPUs or for the CPU.
        choices: by experiment, what `Cluster.choose` answered.
    """
    sides: dict[str, set[bool]] = {}
    for experiment, choice in choices.items():
        if not isinstance(choice, str):
            sides.setdefault(engines[experiment], set()).add(bool(choice.hardware["gpus"]))
    both = [engine for engine, found in sides.items() if len(found) > 1]
    if not both:
        return None
    return f"engines.{both[0]}: used on nodes with and without GPUs; give each side one of its own"


def minutes(seconds: float, *, gpus: int) -> int:
    """Return the time limit, in minutes, of work that is estimated to take ``seconds``.

    Estimates are rough (`bringup.plan.cost`) and a job that is ended has wasted all its time, so
    the limit is three times as long, and never under ten minutes; on GPUs 45 more, in which a
    first start compiles its kernels.
    """
    return max(10, math.ceil(3 * seconds / 60)) + (FIRST_START_MIN if gpus else 0)


def strangeness(kind: Kind, found: Document, gpus: int) -> str | None:
    """Say how a node differs from what the table says of its kind, or None.

    Args:
        kind: the node's kind.
        found: the fingerprint taken on the node; it may show only the GPUs that the job was given.
        gpus: how many GPUs the job was given.
    """
    if len(found["gpus"]) < gpus:
        return f"{gpus} GPUs were asked for, {len(found['gpus'])} are to be seen"
    strangers = [gpu["name"] for gpu in found["gpus"] if not _is_one_of(gpu, kind.hardware["gpus"])]
    if gpus and strangers:
        return f"it has {strangers[0]}; the table of nodes says otherwise of {kind.name}"
    return None


def shared(folder: Path, partitions: Iterable[Any] | None = None) -> str | None:
    """Say that other nodes see what is in ``folder``, which is for one node's own; or None.

    Args:
        folder: where running processes have their locks and sockets.
        partitions: what is mounted, as `psutil.disk_partitions` tells it.
    """
    mounted = psutil.disk_partitions(all=True) if partitions is None else partitions
    below = [each for each in mounted if folder.absolute().is_relative_to(each.mountpoint)]
    kind = max(below, key=lambda each: len(each.mountpoint)).fstype if below else ""
    if not kind.startswith(SHARED_FILE_SYSTEMS):
        return None
    return f"{folder} is for this node alone, but lies on {kind}; set BRINGUP_RUN to a local folder"


def late(sent: float, *, now: float | None = None) -> str | None:
    """Say that this machine's clock is behind that of the machine which sent a job, or None.

    Args:
        sent: seconds since the epoch by the sender's clock; a job starts after it was sent.
        now: seconds since the epoch by this machine's clock.
    """
    behind = sent - (time.time() if now is None else now)
    if behind > CLOCKS_S:
        return f"its clock is {behind:.0f} s behind that of the machine that started the workflow"
    return None


def early(path: Path, *, now: float | None = None) -> str | None:
    """Say that ``path`` was written in the future, by a node whose clock is ahead, or None."""
    ahead = path.stat().st_mtime - (time.time() if now is None else now)
    if ahead > CLOCKS_S:
        return f"the clock that dated {path} is {ahead:.0f} s ahead of this machine's"
    return None


def _is_one_of(gpu: Document, known: list[Document]) -> bool:
    return any(
        gpu["capability"] == each["capability"]
        and math.isclose(gpu["memory_gib"], each["memory_gib"], rel_tol=0.1)
        for each in known
    )
