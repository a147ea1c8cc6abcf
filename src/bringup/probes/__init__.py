"""Questions with known answers, and the verdict over a server's answers to them."""

from bringup.probes.asking import NO_THINKING, Item, ask, ask_within_batch
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
from bringup.probes.suites import (
    Question,
    SuiteError,
    beyond_context,
    context_of,
    load,
    longest,
    short,
)

__all__ = [
    "NO_THINKING",
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
    "beyond_context",
    "context_of",
    "document",
    "gate",
    "load",
    "longest",
    "reason",
    "short",
    "summary",
]
