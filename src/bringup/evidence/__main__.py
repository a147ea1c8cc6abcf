"""Print what a server's log, ``/server_info`` and traces prove.

Exit code 0: the server became ready; 1: it did not, or its weights are incomplete; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bringup import artifact
from bringup.evidence.examine import examine
from bringup.redact import redacted


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_args(argv)
    try:
        info = artifact.read(options.server_info) if options.server_info else None
        document = examine(options.log, info, _traces(options.trace))
    except (OSError, ValueError) as error:
        print(f"evidence: {_one_line(error)}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(redacted(document), indent=2, ensure_ascii=False))
    else:
        print("\n".join(_told(document)))
    return 0 if document["outcome"] == "ready" else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bringup.evidence", description=__doc__)
    parser.add_argument("log", type=Path, help="the server's log")
    parser.add_argument("--server-info", type=Path, help="what /server_info answered (JSON)")
    parser.add_argument(
        "--trace",
        type=Path,
        action="append",
        default=[],
        help="a torch profiler trace, .json or .json.gz, or a folder of them; once per rank",
    )
    parser.add_argument("--json", action="store_true", help="print the document")
    return parser


def _traces(named: Sequence[Path]) -> list[Path]:
    """Return the trace files; a folder stands for those in it.

    Raises:
        ValueError: a folder holds none.
    """
    traces: list[Path] = []
    for path in named:
        if not path.is_dir():
            traces.append(path)
            continue
        inside = sorted([*path.glob("*.json"), *path.glob("*.json.gz")])
        if not inside:
            raise ValueError(f"{path}: no trace in it (.json or .json.gz)")
        traces += inside
    return traces


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _told(document: artifact.Document) -> list[str]:
    """Return the diagnosis as lines of text."""
    rows = [f"outcome: {document['outcome']}"]
    if failure := document["failure"]:
        rows += [f"failure: {failure['class']}: {failure['message']}", f"  try: {failure['hint']}"]
        rows += [f"  | {line}" for line in failure["evidence"]]
    rows += [_backend(module, row) for module, row in document["backends"].items()]
    rows += [_difference(row) for row in document["differences"]]
    rows += [f"warning: {row['class']}: {row['message']}" for row in document["warnings"]]
    if document["kv_tokens"] is not None:
        rows.append(f"KV cache: {document['kv_tokens']} tokens")
    if kernels := document["kernels"]:
        rows += _kernels(kernels)
    return rows


def _backend(module: str, row: artifact.Document) -> str:
    told = ", ".join(f"{key} {_word(row[key])}" for key in ("asked", "resolved", "used"))
    return f"{module}: {row['verdict']} ({told})"


def _difference(row: artifact.Document) -> str:
    why = row["why"] or "no line of the log explains it"
    return f"changed: {row['field']}: asked {row['asked']}, resolved {row['resolved']}: {why}"


def _kernels(kernels: artifact.Document) -> list[str]:
    if kernels["reason"]:
        return [f"kernels: {kernels['reason']['message']}"]
    unexplained = 100 * (kernels["unexplained_share"] or 0)
    rows = [f"kernels: {kernels['sentence']}", f"  unexplained: {unexplained:.1f} %"]
    return rows + [f"  note: {note}" for note in kernels["notes"]]


def _word(value: Any) -> str:
    return "unknown" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
