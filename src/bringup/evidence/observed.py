"""What a server's log says about it: values, proofs and warnings (``log_rules.yaml``)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.evidence.diagnosis import quoted
from bringup.evidence.log import Line, Repeats, lines
from bringup.evidence.rules import table

LONGEST_MATCHED = 1000
"""Characters of a line that the rules look at."""

MOST_OF_A_KIND = 20
"""Lines that begin alike and are looked at."""

MOST_LINES = 500
"""Lines kept to explain values by."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A line that shows what the server does."""

    line: str
    says: str
    module: str | None
    """``experts | attention | dense``, where the line names what runs it."""
    used: str | None
    """The backend or kernel family that the line proves."""


@dataclass
class Observed:
    """All that one reading of a log gave."""

    values: dict[str, str] = field(default_factory=dict)
    proofs: list[Proof] = field(default_factory=list)
    warnings: list[dict[str, str]] = field(default_factory=list)
    arguments: str = ""
    """The echo of the server's arguments, as the log has it."""
    lines: list[str] = field(default_factory=list)
    """Other lines of the start that mention an argument by name; see `explains`."""

    def used(self, module: str) -> Proof | None:
        """Return the proof of what runs ``module``, None if no line shows it."""
        return next((proof for proof in self.proofs if proof.module == module), None)

    def explains(self, name: str) -> str | None:
        """Return the first line that gives a reason for an argument's value, None if none does.

        A line that only repeats ``name=value`` is no reason, unless it says that it sets it.
        """
        spelt = re.escape(name).replace("_", "[_-]")
        reason = re.compile(
            rf"(?<![\w-]){spelt}(?![\w=-])|\b(?:[Ss]et|[Oo]verrid|[Aa]djust)\w* {spelt}(?!\w)"
        )
        return next((line for line in self.lines if reason.search(line)), None)

    def argument(self, name: str) -> str | None:
        """Return the value of an argument in the log's echo of all of them, as text."""
        found = re.search(
            rf"(?<!\w){re.escape(name)}['\"]?(?:=|: )(?:'([^']*)'|\"([^\"]*)\"|([\w.+-]+))",
            self.arguments,
        )
        if found is None:
            return None
        text = next(group for group in found.groups() if group is not None)
        return None if text == "None" else text


def observe(log: Path) -> Observed:
    """Read a log once and return what it says of the server.

    Raises:
        OSError: the log cannot be read.
    """
    observed = Observed()
    worn = Repeats(MOST_OF_A_KIND)
    for line in lines(log):
        if line.text.startswith("server_args="):
            observed.arguments = observed.arguments or line.text
        elif not worn(line) and _says_something(line):
            _note(observed, line)
    return observed


def _says_something(line: Line) -> bool:
    never = table("failures")["never"]
    return bool(line.text.strip()) and not any(
        rule["pattern"].search(line.text[:LONGEST_MATCHED]) for rule in never
    )


def _note(observed: Observed, line: Line) -> None:
    text = line.text[:LONGEST_MATCHED]
    rules = table("log_rules")
    for rule in rules["facts"]:
        if match := rule["pattern"].search(text):
            for name, value in match.groupdict().items():
                if value is not None:
                    observed.values.setdefault(name, value)
    proof = next((rule for rule in rules["proofs"] if rule["pattern"].search(text)), None)
    if proof is not None and not any(known.says == proof["says"] for known in observed.proofs):
        observed.proofs.append(
            Proof(quoted(line), proof["says"], proof.get("module"), proof.get("used"))
        )
    _warn(observed, line, text)
    if len(observed.lines) < MOST_LINES and ("_" in text or "--" in text):
        observed.lines.append(quoted(line))


def _warn(observed: Observed, line: Line, text: str) -> None:
    seen = {warning["class"] for warning in observed.warnings}
    for rule in table("log_rules")["warnings"]:
        if rule["class"] not in seen and rule["pattern"].search(text):
            observed.warnings.append(
                {"class": rule["class"], "message": rule["message"], "line": quoted(line)}
            )


def number(value: Any) -> float | None:
    """Return a figure of a log or of ``/server_info``; None if it is none, or is negative.

    Differences of free memory come out negative when another process freed some meanwhile.
    """
    try:
        figure = float(value)
    except (TypeError, ValueError):
        return None
    return figure if figure >= 0 else None
