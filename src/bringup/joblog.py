"""What a job prints goes to its log; what a person must see goes to the terminal too."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from bringup.paths import homeless
from bringup.redact import redacted_text


def _clean(text: str) -> str:
    return homeless(redacted_text(text))


class _Redacting:
    """A text stream that writes to a log without secrets and home folders."""

    def __init__(self, sink: IO[str]) -> None:
        self._sink = sink

    def write(self, text: str) -> int:
        self._sink.write(_clean(text))
        return len(text)

    def flush(self) -> None:
        self._sink.flush()


@contextlib.contextmanager
def logged(log: str | os.PathLike[str]) -> Iterator[Path]:
    """Send stdout and stderr to ``log`` for the time of a job, and yield the log's path.

    An error ends the job with one line on the terminal; where it came from is in the log.
    """
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", buffering=1) as sink:
        stream = _Redacting(sink)
        try:
            with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
                yield path
        except Exception as error:
            sink.write(_clean(traceback.format_exc()))
            message = redacted_text(str(error) or type(error).__name__)
            print(f"{path.stem}: {message}", file=sys.stderr)
            raise SystemExit(1) from None


def run(command: Sequence[str | os.PathLike[str]]) -> None:
    """Run a program, its output going where this job's goes, line by line.

    Raises:
        OSError: it could not be started, or ended with an error; the message has its last line.
    """
    last = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            print(line, end="")
            last = line.strip() or last
    if process.returncode:
        name = " ".join(Path(word).name for word in command[:2])
        raise OSError(f"{name} ended with {process.returncode}: {last}")
