"""``python -m bringup.reading <checkpoint folder> --python <interpreter> [--json]``.

Exit code 0: the build reads the checkpoint as what it is; 1: it does not, or it can't be told;
2: bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bringup import artifact, checkpoint, engine, formats, hardware, reading
from bringup.engine.environment import EnvironmentUnusableError
from bringup.engine.worker import EngineSilentError
from bringup.redact import redacted, redacted_text

SHOWN = ("verdict", "quantization", "experts", "message", "fixed_by")


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask one interpreter about one checkpoint; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bringup.reading",
        description="Tell how an installed SGLang reads a checkpoint's metadata (no weights).",
    )
    parser.add_argument("checkpoint", help="a folder with config.json")
    parser.add_argument("--python", required=True, help="an interpreter that has SGLang")
    parser.add_argument("--trust-remote-code", action="store_true", help="run its own code")
    parser.add_argument("--json", action="store_true", help="print the reading as JSON")
    given = parser.parse_args(arguments)
    try:
        document = redacted(_reading(given))
    except (
        checkpoint.UnusableError,
        checkpoint.UnreachableError,
        EnvironmentUnusableError,
        EngineSilentError,
    ) as error:
        print(redacted_text(f"error: {error}"), file=sys.stderr)
        return 2
    if document["status"] != "ok":
        print(f"error: {document['reason']['message']}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({key: document[key] for key in SHOWN}, indent=2, ensure_ascii=False))
    else:
        print(f"{document['verdict']}: {document['message']}")
    return 0 if document["verdict"] == "agrees" else 1


def _reading(given: argparse.Namespace) -> artifact.Document:
    entry = {"path": given.checkpoint, "trust-remote-code": given.trust_remote_code}
    metadata = checkpoint.metadata(entry, name=Path(given.checkpoint).resolve().name)
    with tempfile.TemporaryDirectory(prefix="bringup-reading-") as folder:
        log = Path(folder, "reading.log")
        cuda = bool(hardware.fingerprint()["gpus"])
        build = engine.build({"python": given.python}, engine_name="python", cuda=cuda, log=log)
        return reading.read(metadata, formats.detect(metadata), build, log=log)


if __name__ == "__main__":
    sys.exit(main())
