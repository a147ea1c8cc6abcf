"""Asked, resolved, used: which backend was meant to run, and which one did.

Asked is what stands in the config, resolved what the server says it settled on, used what its
kernels or a line of its log prove.  The verdict is whether the last keeps the others' promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.artifact import Document
from bringup.evidence.rules import table

MODULES = ("experts", "attention", "dense")

UNDECIDED = (None, "", "auto", "None")
"""Values that leave the choice to the server."""


def deciding(module: str, asked: Mapping[str, Any], resolved: Mapping[str, Any]) -> Document:
    """Return ``{flag, formats}`` of the flag that decides what runs ``module``.

    ``formats`` are the number formats whose kernels the flag speaks for; None for all of them.
    """
    flags = table("resolved_fields")["modules"][module]
    for said in (asked, resolved):
        for row in flags:
            if said.get(row["flag"]) not in UNDECIDED:
                return {"flag": row["flag"], "formats": row.get("formats")}
    return {"flag": flags[-1]["flag"], "formats": None}


def verdict(module: str, asked: Any, resolved: Any, used: str | None) -> str:
    """Return ``confirmed | fell-back | unverified``.

    What was asked for counts before what the server resolved.  Where both leave the choice to the
    server, nothing was promised and whatever is proven to run is confirmed.  A backend whose
    kernels are not in the table (``kernels.yaml``, runs) stays unverified: never rounded up.
    """
    promised = next((value for value in (asked, resolved) if value not in UNDECIDED), None)
    if used is None:
        return "unverified"
    if promised is None:
        return "confirmed"
    kept_by: Sequence[str] | None = table("kernels")["runs"][module].get(str(promised))
    if kept_by is None:
        return "unverified"
    return "confirmed" if used in kept_by else "fell-back"


def backend(
    module: str,
    asked: Mapping[str, Any],
    resolved: Mapping[str, Any],
    used: str | None,
    evidence: Sequence[str],
) -> Document:
    """Return ``{flag, asked, resolved, used, verdict, evidence}`` of one module class."""
    flag = deciding(module, asked, resolved)["flag"]
    return {
        "flag": flag,
        "asked": asked.get(flag),
        "resolved": resolved.get(flag),
        "used": used,
        "verdict": verdict(module, asked.get(flag), resolved.get(flag), used),
        "evidence": list(evidence),
    }
