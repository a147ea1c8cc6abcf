"""Texts to send instead of random tokens: real conversations, from a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.paths import PROJECT

OURS = {"chat": PROJECT / "resources" / "prompts" / "chat.jsonl"}
"""Names of the files that come with the project."""

RANDOM = "random"

SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
"""Who speaks in a ShareGPT file → the role in a chat."""

MOST_NAMED = 5

SHAPES = (
    'a text, {"prompt": text}, {"messages": [{"role": …, "content": …}]}, or ShareGPT\'s '
    '{"conversations": [{"from": "human", "value": …}]}'
)

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Prompts:
    """Conversations to be answered, each ending with what a user says; from the file ``name``."""

    name: str
    sha256: str
    conversations: tuple[Messages, ...]

    def document(self) -> dict[str, Any]:
        """Return which prompts these are."""
        return {"name": self.name, "sha256": self.sha256, "conversations": len(self.conversations)}


def file_of(name: str) -> Path | None:
    """Return the file that ``sweep.prompts`` names, None for random tokens."""
    return None if name == RANDOM else OURS.get(name, Path(name))


def load(name: str) -> Prompts | None:
    """Return the prompts that ``sweep.prompts`` names, None for random tokens.

    A ``.jsonl`` file has one conversation a line, a ``.json`` file a list of them.

    Raises:
        ValueError: there is no such file, or an entry of it is none; each is named with its line
            (or place in the list), and what would be right.
    """
    path = file_of(name)
    if path is None:
        return None
    if path.suffix not in (".json", ".jsonl"):
        raise ValueError(
            f"sweep.prompts: {name!r} is not right; right: {', '.join((RANDOM, *OURS))}, or a "
            ".json or .jsonl file"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"sweep.prompts: {path}: {error.strerror}") from None
    found: list[Messages] = []
    broken: list[str] = []
    for place, entry in _entries(path, content):
        try:
            found.append(conversation(json.loads(entry) if isinstance(entry, bytes) else entry))
        except ValueError as error:
            why = "no JSON" if isinstance(error, json.JSONDecodeError) else str(error)
            broken.append(f"{path}:{place}: {why}")
    if broken:
        left = len(broken) - MOST_NAMED
        more = [f"and {left} more"] if left > 0 else []
        raise ValueError("\n".join([*broken[:MOST_NAMED], *more, f"right: {SHAPES}"]))
    if not found:
        raise ValueError(f"{path}: holds no prompts; right: one a line, {SHAPES}")
    return Prompts(name, hashlib.sha256(content).hexdigest(), tuple(found))


def conversation(entry: Any) -> Messages:
    """Return the messages of one entry, up to the last one that a user says.

    Raises:
        ValueError: the entry has no known shape, or no user says anything in it.
    """
    if isinstance(entry, str):
        entry = {"prompt": entry}
    if not isinstance(entry, dict):
        raise ValueError("neither a text nor an object")
    if isinstance(entry.get("prompt"), str):
        messages = [{"role": "user", "content": entry["prompt"]}]
    elif isinstance(entry.get("messages"), list):
        messages = [_message(each, "role", "content") for each in entry["messages"]]
    elif isinstance(entry.get("conversations"), list):
        messages = [_message(each, "from", "value") for each in entry["conversations"]]
    else:
        raise ValueError('has neither "prompt" nor "messages" nor "conversations"')
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    if not messages or not messages[-1]["content"].strip():
        raise ValueError("no user says anything in it")
    return messages


def _message(each: Any, who: str, what: str) -> dict[str, str]:
    said = each.get(what) if isinstance(each, dict) else None
    role = SPEAKERS.get(str(each.get(who))) if isinstance(each, dict) else None
    if role is None or not isinstance(said, str):
        raise ValueError(f'a message without "{who}" ({", ".join(SPEAKERS)}) or text "{what}"')
    return {"role": role, "content": said}


def _entries(path: Path, content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the entries of a file, each with its line or its place in the list, from 1."""
    if path.suffix == ".jsonl":
        for number, line in enumerate(content.splitlines(), 1):
            if line.strip():
                yield number, line
        return
    try:
        entries = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(entries, list):
        raise ValueError(f"{path}: not a list; right: a list of {SHAPES}")
    yield from enumerate(entries, 1)
