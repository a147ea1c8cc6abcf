"""``python -m bringup.report [results] [--output folder] [--json]``.

Writes the report from what is there: while a run goes on, or from results of long ago.  What
belongs to it stands in ``asked.json``, which each run writes when it starts.

Exit code 0: everything asked for is there; 1: the report says what is missing; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bringup import asked, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report of a folder of results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bringup.report",
        description="Write the report from what is there, also while a run goes on.",
    )
    parser.add_argument("results", nargs="?", default="results", help="a folder of results")
    parser.add_argument("--output", help="where to write to, by default the same folder")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead")
    given = parser.parse_args(arguments)
    results = Path(given.results)
    output = Path(given.output) if given.output else results
    try:
        experiments, documents = asked.read(results)
        what: dict[str, Any] = {
            "experiments": experiments,
            "documents": documents,
            "output": output,
            "remember": False,  # the end of a run is compared with the end of the run before
        }
        told = report.document(**what) if given.json else report.build(**what)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        print(output / "report.html")
    return 1 if told["notices"] else 0


if __name__ == "__main__":
    sys.exit(main())
