"""Why a server failed: the first cause in its log, not the last echo.

Ranks repeat each other and a crash is reported by everything that notices it, so the last error of
a log is rarely the reason.  The rules are data: ``failures.yaml``.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.artifact import Document, reason
from bringup.evidence.log import Line, Repeats, lines
from bringup.evidence.rules import table
from bringup.redact import redacted_text
from bringup.resident.log import DROPPED, NOTE

MOST_EVIDENCE = 20
"""Log lines that a reason may quote."""

LINES_BEFORE = 10
LINES_AFTER = 4

LONGEST_QUOTE = 300
"""Characters quoted of one line."""

SAME_TRACEBACK = 120
"""Lines behind a general exception in which a special cause is taken to belong to it."""

MOST_OF_A_KIND = 1000
"""Lines that begin alike and are looked at; the rest of a flood is passed over."""

Rule = dict[str, Any]


@dataclass
class Finding:
    """A line that a failure rule fits, and what stood around it."""

    rule: Rule
    class_: str
    line: Line
    evidence: list[Line]
    still_wanted: int = LINES_AFTER

    @property
    def strength(self) -> str:
        """One of ``cause``, ``general``, ``echo``."""
        return str(self.rule.get("strength", "cause"))


@dataclass
class Course:
    """How far a start came, and what went wrong on the way."""

    stage: str = "start"
    ready: bool = False
    known_ready: bool = False
    """Whether it is known from elsewhere that it became ready: its log may have lost that line."""
    told_to_stop: bool = False
    dead: bool = False
    findings: dict[str, Finding] = field(default_factory=dict)
    """The first finding of each strength."""
    harmful: Finding | None = None
    """The first finding that makes a server wrong even though it starts."""
    tail: deque[Line] = field(default_factory=lambda: deque(maxlen=MOST_EVIDENCE))

    def cause(self) -> Finding | None:
        """Return the first cause: an earlier general exception only if it is another crash."""
        cause, general = self.findings.get("cause"), self.findings.get("general")
        if cause and general and general.line.number < cause.line.number - SAME_TRACEBACK:
            return general
        return cause or general or self.findings.get("echo")


def diagnose(
    log: Path,
    *,
    exit_code: int | None = None,
    ready: bool = False,
    fate: str | None = None,
    said: str | None = None,
) -> Document:
    """Return the reason why the server with this log failed.

    Args:
        log: its log.
        exit_code: how the process ended, negative for a signal; None if it is not known.
        ready: whether it is known to have become ready, whatever is left of its log.
        fate: the class of what became of it, where that was seen from outside: a time-out, no
            answer.  A cause that the log names says more, but for what the log can't know
            (``decides`` in ``failures.yaml``).
        said: that fate in words.

    Returns:
        A reason (`bringup.artifact.reason`) whose class is one of ``failures.yaml``.

    Raises:
        OSError: the log cannot be read.
    """
    course = follow(log, ready=ready)
    found = course.harmful or course.cause()
    known = table("failures")["classes"].get(fate, {})
    if fate and (found is None or found.strength == "echo" or known.get("decides")):
        return _reason(fate, said or f"during {course.stage}", course.tail, {})
    return _explained(course, exit_code)


def failure(log: Path, *, ready: bool = False) -> Document | None:
    """Return the reason why the server with this log is no good, None if it became ready and is.

    ``ready``: it is known to have become ready, whatever is left of its log.

    Raises:
        OSError: the log cannot be read.
    """
    course = follow(log, ready=ready)
    if (course.ready or ready) and course.harmful is None and not course.dead:
        return None
    return _explained(course)


def follow(log: Path, *, ready: bool = False) -> Course:
    """Read ``log`` once and return its course; ``ready`` as for `failure`.

    Raises:
        OSError: the log cannot be read.
    """
    course = Course(known_ready=ready)
    before: deque[Line] = deque(maxlen=LINES_BEFORE)
    worn = Repeats(MOST_OF_A_KIND)
    open_: list[Finding] = []
    for line in lines(log):
        if not line.text or line.text.isspace():
            continue
        if open_:
            open_ = [finding for finding in open_ if _continued(finding, line)]
        if not worn(line) and not _repeats_others(line):
            _advance(course, line)
            finding = None if course.told_to_stop else _finding(line, course.stage, before)
            if finding is not None and _keep(course, finding):
                open_.append(finding)
        before.append(line)
        course.tail.append(line)
    if course.known_ready and not course.ready:
        course.findings.clear()  # the log ends before that, and the server survived them
    return course


def quoted(line: Line) -> str:
    """Return a line as evidence quotes it: short, and without secrets."""
    return redacted_text(line.raw[:LONGEST_QUOTE]).rstrip()


def _advance(course: Course, line: Line) -> None:
    start = line.text[:LONGEST_QUOTE]
    signs = table("failures")
    for step in signs["stages"]:
        if step["pattern"].search(start):
            course.stage = step["stage"]
    if course.known_ready and start.startswith(NOTE) and DROPPED in start:
        course.stage = "serving"  # said in what was dropped, if it is not said before
    if course.stage == "serving" and not course.ready:
        course.ready = True
        course.findings.clear()  # whatever they were, the server survived them
    if any(sign["pattern"].search(start) for sign in signs["stop"]):
        course.told_to_stop = True
    elif any(sign["pattern"].search(start) for sign in signs["death"]):
        course.dead = course.dead or not course.told_to_stop


def _finding(line: Line, stage: str, before: Iterable[Line]) -> Finding | None:
    text = line.text[: 4 * LONGEST_QUOTE]
    rules = table("failures")["rules"]
    rule = next((rule for rule in rules if rule["pattern"].search(text)), None)
    if rule is None:
        return None
    class_ = rule["by_stage"][stage] if "by_stage" in rule else rule["class"]
    return Finding(rule, class_, line, [*before, line])


def _continued(finding: Finding, line: Line) -> bool:
    """Add a line to a finding's evidence, and return whether it wants more."""
    finding.evidence.append(line)
    finding.still_wanted -= 1
    return finding.still_wanted > 0


def _repeats_others(line: Line) -> bool:
    """Whether the line repeats what others said (arguments, requests), and so proves nothing."""
    return any(
        rule["pattern"].search(line.text[:LONGEST_QUOTE]) for rule in table("failures")["never"]
    )


def _keep(course: Course, finding: Finding) -> bool:
    """Note ``finding`` if it is the first of its kind."""
    if finding.rule.get("healthy"):
        if course.harmful is None:
            course.harmful = finding
            return True
        return False
    if finding.strength in course.findings:
        return False
    course.findings[finding.strength] = finding
    return True


def _explained(course: Course, exit_code: int | None = None) -> Document:
    found = course.harmful or course.cause()
    if found is None:
        return _reason(*_without_a_cause(course, exit_code), course.tail, {})
    return _reason(found.class_, quoted(found.line), found.evidence, found.rule)


def _without_a_cause(course: Course, exit_code: int | None) -> tuple[str, str]:
    at = f"during {course.stage}"
    if exit_code in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGTERM):
        return "killed", f"{at}, exit code {exit_code}"
    if exit_code is not None and exit_code < 0:
        return "crashed-by-signal", f"{at}, {signal.Signals(-exit_code).name}"
    ended = "" if exit_code is None else f", exit code {exit_code}"
    return ("stopped" if course.ready or course.known_ready else "unfinished"), f"{at}{ended}"


def _reason(class_: str, message: str, evidence: Iterable[Line], rule: Rule) -> Document:
    known = table("failures")["classes"][class_]
    return reason(
        class_,
        f"{rule.get('meaning', known['meaning'])}: {message}",
        evidence=[quoted(line) for line in evidence][-MOST_EVIDENCE:],
        hint=rule.get("hint", known["hint"]),
    )
