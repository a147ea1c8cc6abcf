"""Questions with known answers, and the verdict over a server's answers to them."""

from bringup.probes.asking import Item, ask, ask_within_batch
from bringup.probes.gate import (
    SCHEMA,
    Gate,
    Thresholds,
    Verdict,
    across,
    document,
    gate,
    reason,
    summary,
)
from bringup.probes.judging import Outcome
from bringup.probes.suites import Question, SuiteError, check_context, load, short

__all__ = [
    "SCHEMA",
    "Gate",
    "Item",
    "Outcome",
    "Question",
    "SuiteError",
    "Thresholds",
    "Verdict",
    "across",
    "ask",
    "ask_within_batch",
    "check_context",
    "document",
    "gate",
    "load",
    "reason",
    "short",
    "summary",
]
