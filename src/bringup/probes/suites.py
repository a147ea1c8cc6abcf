"""Probe suites: files of questions with known answers, checked before any server starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml

from bringup.probes.patterns import trouble

Rule = Literal["exact", "number", "regex", "choice"]
"""How a text is compared with the answer; see `bringup.probes.judging`."""

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
SUITE_KEYS = frozenset({"suite", "description", "detects", "source", "max_tokens", "rule", "items"})
ITEM_KEYS = frozenset(
    {"id", "prompt", "answer", "rule", "choices", "max_tokens", "times", "records"}
)

CHARACTERS_PER_TOKEN = 3
"""A cautious guess for English text; the server knows better and says so as an error item."""


class SuiteError(ValueError):
    """A suite file is not usable; the message is one line: file, item, what would be right."""


@dataclass(frozen=True)
class Question:
    """One question and its known answer.

    ``answer`` is the text, the number or (rule ``regex``) the pattern that makes it right;
    ``max_tokens`` bounds what the server may generate, so that a broken one costs little.
    """

    id: str
    suite: str
    prompt: str
    answer: str
    rule: Rule
    max_tokens: int
    choices: tuple[str, ...] = ()


def load(suites: Sequence[str], folder: Path) -> list[Question]:
    """Read the questions of ``suites``, files ``<folder>/<suite>.yaml``, in the order asked.

    Raises:
        SuiteError: no such suite, or the file breaks a rule of its format.
    """
    return [question for suite in suites for question in _suite(suite, folder)]


def longest(questions: Sequence[Question]) -> tuple[str, int]:
    """Return which question needs the longest context, and the tokens that it needs, estimated."""
    sizes = {
        f"suite {each.suite}: {each.id}": len(each.prompt) // CHARACTERS_PER_TOKEN + each.max_tokens
        for each in questions
    }
    return max(sizes.items(), key=lambda named: named[1])


def beyond_context(name: str, needed: int, context: int | None) -> str | None:
    """Say that a question does not fit into the model's context; None where it does."""
    if context is None or needed <= context:
        return None
    return (
        f"{name} needs about {needed} tokens, the model's context has {context}; "
        "leave the suite out for this experiment"
    )


def context_of(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a model reads at most, by its ``config.json``; None if it is silent.

    Multimodal models say it in ``text_config``.
    """
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else {}
    found = config.get("max_position_embeddings", inner.get("max_position_embeddings"))
    return found if isinstance(found, int) else None


def short(questions: Sequence[Question], most: int) -> list[Question]:
    """Return at most ``most`` of ``questions``: the first of every suite by turns."""
    turns: dict[str, int] = {}

    def turn(question: Question) -> int:
        turns[question.suite] = turns.get(question.suite, 0) + 1
        return turns[question.suite]

    return sorted(questions, key=turn)[:most]


def _suite(name: str, folder: Path) -> list[Question]:
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.yaml"))) or "none"
        raise SuiteError(f"{path}: no such probe suite; there are: {known}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SuiteError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    try:
        return list(_questions(name, content))
    except SuiteError as error:
        raise SuiteError(f"{path}: {error}") from None


def _questions(name: str, content: Any) -> Iterator[Question]:
    _check_keys(content, "the file", SUITE_KEYS, {"suite", "description", "detects", "source"})
    if content["suite"] != name:
        raise SuiteError(f"suite is {content['suite']!r}; it must be the file's name, {name!r}")
    items = content.get("items")
    if not isinstance(items, list) or not items:
        raise SuiteError("items must be a list of questions")
    seen: set[str] = set()
    for place, item in enumerate(items):
        question = _question(name, f"items[{place}]", item, content)
        if question.id in seen:
            raise SuiteError(f"items[{place}]: id {question.id!r} stands twice")
        seen.add(question.id)
        yield from repeat(question, _count(item.get("times", 1), "times", f"items[{place}]"))


def _question(suite: str, place: str, item: Any, content: dict[str, Any]) -> Question:
    _check_keys(item, place, ITEM_KEYS, {"id", "prompt", "answer"})
    where = f"{place} ({item['id']})"
    if not isinstance(item["id"], str) or not NAME.fullmatch(item["id"]):
        raise SuiteError(f"{where}: id must be lower-case letters, digits, '-', '.' and '_'")
    if not isinstance(item["prompt"], str) or not item["prompt"].strip():
        raise SuiteError(f"{where}: prompt must be a text")
    rule = item.get("rule", content.get("rule"))
    if rule not in get_args(Rule):
        raise SuiteError(f"{where}: rule must be one of {', '.join(get_args(Rule))}, not {rule!r}")
    choices = item.get("choices", [])
    if not isinstance(choices, list) or not all(isinstance(each, str) for each in choices):
        raise SuiteError(f"{where}: choices must be a list of texts")
    question = Question(
        id=item["id"],
        suite=suite,
        prompt=_records(item, where) + item["prompt"],
        answer=_answer(item["answer"], where),
        rule=cast(Rule, rule),
        max_tokens=_count(item.get("max_tokens", content.get("max_tokens")), "max_tokens", where),
        choices=tuple(choices),
    )
    _check_answer(question, where)
    return question


def _count(count: Any, key: str, where: str) -> int:
    if type(count) is not int or count < 1:
        raise SuiteError(f"{where}: {key} must be a whole number above 0, not {count!r}")
    return count


def _records(item: dict[str, Any], where: str) -> str:
    """Return as many numbered records as an item wants to look into, about 20 tokens each."""
    if "records" not in item:
        return ""
    count = _count(item["records"], "records", where)
    lines = [
        f"Record {n}: shelf {n * 13 % 47}, box {n * 29 % 83}, weight {n * 37 % 91 + 9} kg."
        for n in range(1, count + 1)
    ]
    return "\n".join(lines) + "\n\n"


def _answer(answer: Any, where: str) -> str:
    """Return the answer as text; YAML's yes, 1e3 and null are refused instead of guessed at."""
    if type(answer) is int:
        return str(answer)
    if not isinstance(answer, str) or not answer.strip():
        raise SuiteError(f"{where}: answer must be a text or a whole number, not {answer!r}")
    return answer


def _check_answer(question: Question, where: str) -> None:
    if question.rule == "number" and not re.fullmatch(r"-?\d+(\.\d+)?", question.answer):
        raise SuiteError(f"{where}: answer {question.answer!r} is no number, as the rule wants")
    if question.rule == "choice" and question.answer not in question.choices:
        raise SuiteError(f"{where}: answer {question.answer!r} is none of its choices")
    if question.rule == "regex" and (wrong := trouble(question.answer)):
        raise SuiteError(f"{where}: pattern {question.answer!r} {wrong}")


def _check_keys(mapping: Any, where: str, known: frozenset[str], needed: set[str]) -> None:
    if not isinstance(mapping, dict):
        raise SuiteError(f"{where} must hold keys and values, not {type(mapping).__name__}")
    for key in mapping:
        if key not in known:
            raise SuiteError(f"{where}: unknown key {key!r}; known: {', '.join(sorted(known))}")
    for key in sorted(needed - mapping.keys()):
        raise SuiteError(f"{where}: no {key}")
