"""The JSON documents that stages hand to each other (docs/design.md §4).

Every document has ``schema`` ("name/version"), ``status`` and ``reason``.  A result that says
no is a result: it is written like any other, with a reason that a person can act on.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

from bringup import paths
from bringup.redact import redacted

Document = dict[str, Any]
Status = Literal["ok", "failed", "refused", "wrong", "skipped"]

STOPS: frozenset[str] = frozenset({"failed", "refused", "skipped"})
"""Statuses after which no later stage of the experiment runs."""


def reason(
    class_: str, message: str, *, evidence: Iterable[str] = (), hint: str | None = None
) -> Document:
    """Say why: a class to group by, one sentence, the lines that show it, what to try."""
    return {"class": class_, "message": message, "evidence": list(evidence), "hint": hint}


def document(
    schema: str, status: Status = "ok", reason: Document | None = None, **fields: Any
) -> Document:
    """Return a document with its head first, then ``fields`` as given."""
    return {"schema": schema, "status": status, "reason": reason, **fields}


def skipped(schema: str, cause: Document, **fields: Any) -> Document:
    """Return the document of a stage that did not run because of ``cause``, an earlier document.

    The first cause is handed on, not repeated: skipping a skipped stage names the same one.
    """
    first = cause["reason"] or reason(cause["status"], f"{cause['schema']} says {cause['status']}")
    if cause["status"] != "skipped":
        stage = cause["schema"].partition("/")[0]
        first = {**first, "message": f"{stage} {cause['status']}: {first['message']}"}
    return document(schema, "skipped", first, **fields)


def stopping(*documents: Document) -> Document | None:
    """Return the first of ``documents`` after which nothing more may run, or None."""
    return next((each for each in documents if each["status"] in STOPS), None)


def read(path: str | os.PathLike[str]) -> Document:
    """Read a document, ``{home}`` filled in.

    Raises:
        ValueError: the file is no JSON object; the message names it.
    """
    text = Path(path).read_text(encoding="utf-8")
    home = json.dumps(paths.home(), ensure_ascii=False)[1:-1]
    try:
        loaded = json.loads(text.replace(paths.HOME, home))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"{path}: holds a {type(loaded).__name__}, not an object")
    return loaded


def read_each(files: Mapping[str, str], *names: str) -> list[Document]:
    """Read those of ``files`` that are named, in that order; raises like `read`."""
    return [read(files[name]) for name in names]


def write(path: str | os.PathLike[str], document: Document) -> None:
    """Write ``document`` whole or not at all; same content, same bytes.

    Secrets are left out, and ``{home}`` stands for the user's home folder (`bringup.paths`).

    Raises:
        ValueError: a number in it is not finite (JSON has no NaN; a missing figure is ``null``).
    """
    clean = redacted(document, paths.homeless)
    text = json.dumps(clean, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file whole or not at all."""
    with writing(path) as file:
        file.write(text)


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Open a text file to write that is there whole, once the block ends well, or not at all."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            yield file
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
