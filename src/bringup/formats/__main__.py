"""``python -m bringup.formats <folder or hub repo>[@revision] [--json]``.

Exit code 0: files and tensors agree; 1: they contradict each other; 2: it can't be told.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from bringup import checkpoint, formats
from bringup.redact import redacted, redacted_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Describe one checkpoint; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bringup.formats",
        description="Tell in which format a checkpoint's weights are, without downloading them.",
    )
    parser.add_argument("checkpoint", help="a folder, or a hub repository; a revision after @")
    parser.add_argument("--json", action="store_true", help="print the whole document")
    given = parser.parse_args(arguments)
    where, _, revision = given.checkpoint.partition("@")
    if checkpoint.is_path(given.checkpoint):
        where, revision = given.checkpoint, ""
    try:
        document = formats.describe(where, revision or None)
    except (checkpoint.UnusableError, OSError) as error:
        print(redacted_text(f"error: {error}"), file=sys.stderr)
        return 2
    document = redacted(document)
    print(json.dumps(document, indent=2, ensure_ascii=False) if given.json else table(document))
    return 1 if document["verdict"] == "conflict" else 0


def table(document: dict[str, Any]) -> str:
    """Return a short text for people: a line for each module class, then the verdict."""
    declared, observed = document["declared"] or {}, document["observed"] or {}
    rows = [("class", "declared", "observed", "parameters", "bytes")]
    for class_ in sorted({*declared, *observed}):
        said, shown = declared.get(class_), observed.get(class_)
        counts = (f"{shown['parameters']:,}", f"{shown['bytes']:,}") if shown else ("–", "–")
        rows.append((class_, _format(said), _format(shown), *counts))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    kv_cache = document["kv_cache"]["format"] if document["kv_cache"] else "as the model"
    lines += ["", f"{document['architecture']}, KV cache {kv_cache}: {document['verdict']}"]
    lines += [f"contradiction: {each}" for each in document["contradictions"]]
    if document["contradictions"]:  # two revisions may differ in their JSON files alone
        lines += [f"{name} is sha256 {each}" for name, each in document["json_hashes"].items()]
    lines += [f"note: {each}" for each in document["notes"]]
    return "\n".join(lines)


def _format(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "–"
    size = entry["group_size"]
    shown = size if isinstance(size, int) or size is None else "×".join(map(str, size))
    more = f" (+ {', '.join(each for each in entry['formats'] if each != entry['format'])})"
    group = f" {shown}" if shown is not None else ""
    return f"{entry['format']}{group}{more if len(entry['formats']) > 1 else ''}"


if __name__ == "__main__":
    sys.exit(main())
