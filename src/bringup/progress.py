"""What a run of the workflow says of itself: what runs, how long it took last time, what is left.

Plain text, a line when a job starts and one when it ends; and what a dry run would do, by what it
is about instead of job by job.  How long jobs took is remembered in a file between runs.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bringup import words

TIMES = Path(".snakemake/times.json")
"""Where it is remembered how long jobs took, below the working directory."""

MOST_NAMED = 6
"""Experiments named on one line of a dry run, and files named as a reason."""

LONGEST_REASON = 160

MOST_OLD_LINES = 1000
"""Lines about earlier runs of the same jobs, from which on the file of times is written anew."""

FOLLOWS = "because of the above"
"""The reason of a job that only another one makes run."""

RULES = {"point_again": "point"}
"""Rules that do what another one does; people know the other one."""

_UNITS = {
    "checkpoint": ("checkpoint",),
    "engine": ("engine",),
    "reading": ("checkpoint", "engine"),
    "experiment": ("experiment",),
}
"""What a job can be about, by its wildcards: the last of these that it has all of."""


@dataclass(frozen=True)
class Job:
    """One job: its rule and wildcards, its first output, and Snakemake's reason to run it."""

    rule: str
    wildcards: Mapping[str, str]
    output: str
    reason: str

    @property
    def kind(self) -> str:
        """Return the kind of what it is about: ``experiment``; "" for the whole run."""
        kinds = [kind for kind, unit in _UNITS.items() if set(unit) <= self.wildcards.keys()]
        return kinds[-1] if kinds else ""

    @property
    def about(self) -> str:
        """Return what it is about: the name of an experiment, checkpoint, engine."""
        return "--".join(str(self.wildcards[name]) for name in _UNITS.get(self.kind, ()))

    @property
    def step(self) -> str:
        """Return its stage: ``probe``, ``point C = 8``, ``point C = 8, boot 2``."""
        step = RULES.get(self.rule, self.rule)
        if "concurrency" in self.wildcards:
            step += f" C = {self.wildcards['concurrency']}"
        return f"{step}, boot {self.wildcards['boot']}" if "boot" in self.wildcards else step

    @property
    def name(self) -> str:
        """Return how a line calls it: ``bf16: point C = 8``."""
        return f"{self.about}: {self.step}" if self.about else self.step


class Times:
    """How long jobs took, the last time that each one ran: a file of ``[rule, output, seconds]``.

    A line is added for each job that ends, so that many thousands cost no more than a few.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._of: dict[str, dict[str, float]] = defaultdict(dict)
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []  # there is none yet
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):  # a line that is broken tells nothing
                rule, output, seconds = json.loads(line)
                self._of[str(rule)][str(output)] = float(seconds)
        if len(lines) > 2 * sum(map(len, self._of.values())) + MOST_OLD_LINES:
            told = [(r, o, s) for r, taken in self._of.items() for o, s in taken.items()]
            self._write("w", told)

    def of(self, job: Job) -> float | None:
        """Return the seconds that a job took last time."""
        return self._of[job.rule].get(job.output)

    def usual(self, rule: str) -> float | None:
        """Return the mean over all jobs of a rule; None if none has run."""
        taken = self._of[rule]
        return math.fsum(taken.values()) / len(taken) if taken else None

    def remember(self, job: Job, seconds: float) -> None:
        """Note how long a job took, for this run and the next."""
        self._of[job.rule][job.output] = seconds
        self._write("a", [(job.rule, job.output, seconds)])

    def _write(self, mode: str, told: Iterable[tuple[str, str, float]]) -> None:
        with contextlib.suppress(OSError):  # a full disk is for the jobs to tell
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open(mode, encoding="utf-8") as file:
                for rule, output, seconds in told:
                    file.write(json.dumps([rule, output, round(seconds, 1)]) + "\n")


@dataclass
class Progress:
    """The lines of one run.  Times are seconds on any clock that only goes forward."""

    times: Times
    left: Counter[str] = field(default_factory=Counter)
    running: dict[int, tuple[Job, float]] = field(default_factory=dict)

    def planned(self, jobs: Mapping[str, int]) -> str:
        """Take how many jobs of each rule there are, and say what that will take."""
        self.left = Counter(jobs)
        return f"{words.counted(self.left.total(), 'job')} to do{self._work_left()}"

    def started(self, number: int, job: Job, now: float) -> str:
        """Say that a job starts."""
        self.running[number] = job, now
        last = self.times.of(job)
        took = "for the first time" if last is None else f"{words.seconds(last)} last time"
        return f"{job.name} ({took})"

    def finished(self, number: int, now: float) -> str | None:
        """Say that a job is done, how long it took, and what is left; None if it is unknown."""
        if number not in self.running:
            return None
        job, began = self.running.pop(number)
        self.times.remember(job, now - began)
        self.left -= Counter([job.rule])
        total = self.left.total()
        rest = f"{words.counted(total, 'job')} left" if total else "all done"
        return f"{job.name} done in {words.seconds(now - began)}; {rest}{self._work_left()}"

    def _work_left(self) -> str:
        known = [(self.times.usual(rule), count) for rule, count in self.left.items()]
        work = sum(usual * count for usual, count in known if usual is not None)
        if not work:
            return ""
        least = "at least " if any(usual is None for usual, _ in known) else "about "
        return f", {least}{words.about(work)} of work"


def outlook(jobs: Sequence[Job], times: Times) -> Iterator[str]:
    """Yield the lines that say what a run would do: one for all that have the same to do, and why.

    What only follows from something earlier on the same line has no reason of its own.
    """
    yield f"{words.counted(len(jobs), 'job')} would run{_cost(jobs, times)}:"
    about: dict[tuple[str, str], list[Job]] = defaultdict(list)
    for job in jobs:
        about[job.kind, job.about].append(job)
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for (kind, subject), its in about.items():
        alike[kind, *_to_do(its)].append(subject)
    for (kind, *to_do), subjects in sorted(
        alike.items(), key=lambda each: _KINDS.index(each[0][0])
    ):
        named = f"{kind}{'s' if len(subjects) > 1 else ''} {words.some(subjects, MOST_NAMED)}"
        yield f"  {named if kind else 'once'}"
        yield from (f"    {line}" for line in to_do)


_KINDS = (*_UNITS, "")


def _cost(jobs: Sequence[Job], times: Times) -> str:
    taken = [times.of(job) for job in jobs]
    known = [seconds for seconds in taken if seconds is not None]
    if not known:
        return ""
    new = len(taken) - len(known)
    rest = f", {new} of them never ran" if new else ""
    return f", about {words.about(sum(known))} of work by what they took last time{rest}"


def _to_do(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield ``steps (why)`` of one subject's jobs, those with one reason together."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        by_reason[why(job.reason)].append(job.step)
    for reason in sorted(by_reason, key=lambda each: each == FOLLOWS):
        yield f"{_steps(by_reason[reason])} ({reason})"


def _steps(steps: Sequence[str]) -> str:
    """Return steps in a row, the levels of points together: ``probe, point C = 1 and 8``."""
    levels = sorted(
        int(level) for step in steps for level in re.findall(r"^point C = (\d+)$", step)
    )
    others = [step for step in steps if not re.fullmatch(r"point C = \d+", step)]
    return ", ".join([*others, f"point {words.levels(levels)}"] if levels else others)


def why(reason: str) -> str:
    """Return Snakemake's reason for a job in words that fit on a line."""
    return "".join(each if each.isprintable() else "?" for each in _why(reason))


def _why(reason: str) -> str:
    said = [text for pattern, text in _REASONS.items() if re.search(pattern, reason)]
    changed = re.search(r"Params have changed since last execution: (.*)", reason, re.DOTALL)
    if changed:
        said.append(_changed(changed.group(1)))
    updated = re.search(r"(?:^|; )Updated input files: ([^;]*)", reason)
    if updated:
        said.append(f"{words.some(updated.group(1).split(', '), MOST_NAMED)} changed")
    if said:
        return "; ".join(said)
    if "updated by another job" in reason:
        return FOLLOWS
    return _short(reason)


_REASONS = {
    "Missing output files": "not there yet",
    "Incomplete output files": "was interrupted",
    "Set of input files has changed": "reads other files than before",
    "Code has changed": "its rule or script changed",
    "Forced execution": "forced",
    "Software environment": "its environment changed",
}
"""What Snakemake says (snakemake 9.27, jobs.py, `Reason`) → what we say."""


def _changed(difference: str) -> str:
    """Say which settings or modules changed, from Snakemake's words about params."""
    sides = re.search(r"before: (.*?) now: (.*)$", difference.strip(), re.DOTALL)
    try:
        before, now = (_values(side) for side in sides.groups()) if sides else ([], [])
    except (ValueError, SyntaxError):
        before, now = [], []
    maps = [[each for each in side if isinstance(each, dict)] for side in (before, now)]
    old, new = ({key: each[key] for each in side for key in each} for side in maps)
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if not keys:
        return f"settings changed: {_short(difference)}"
    return f"{words.some([str(key) for key in keys], MOST_NAMED)} changed"


def _values(side: str) -> list[object]:
    """Return the values that Snakemake lists, ``<nothing exclusive>`` being none."""
    text = side.strip()
    return [] if text.startswith("<") else list(ast.literal_eval(f"[{text}]"))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]} …"
