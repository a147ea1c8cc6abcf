"""Judge one answer of a server: right, wrong, none, or not even a text.

A broken kernel seldom says "wrong answer": it repeats one character, one token, or emits bytes
that are no text.  Such answers are told apart from honest mistakes, because they mean something
else: see SGLang #26324 (garbage at temperature 0 under HTTP 200) and #18874.
"""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from bringup.endpoint import Reply
from bringup.probes.suites import Question

Outcome = Literal["right", "wrong", "no-answer", "degenerate", "error"]
Where = Literal["content", "reasoning_content", "none"]

SHOWN = 400
"""Characters of an answer that are kept."""

SHORT_ANSWER = 40
"""Characters from which on the place of the first error is worth saying."""

RUN = 20
"""So many equal characters in a row are no answer to any question of ours."""

LOOP = re.compile(r"(?s)(.{1,32}?)\1{7,}$")
"""A text that ends in the same few characters eight times or more."""

LOOKED_AT = 512
"""Characters at the end of a text in which a loop is looked for."""

TOKEN_0 = "!"
"""The text of token 0 in the vocabularies of GPT-2, Llama 3 and Qwen: what argmax makes of logits
that are all NaN or all equal."""

INVISIBLE = 8
"""So many tokens without any text are special tokens (id 0 and the like), not silence."""

REFUSAL = re.compile(
    r"(?i)\b(i can(?:no|')t (?:help|assist|answer|provide)|i(?:'m| am) (?:sorry|unable)|as an ai)\b"
)
"""How a model says that it won't; told apart because the answer may be known to it."""

ONE_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "HANGUL": "CJK"}
"""Scripts that stand beside CJK ideographs in ordinary Japanese and Korean text."""

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Judgement:
    """What an answer is worth, where it stood, and what it was judged by.

    ``sign`` names what was noticed about an answer that is not right (``empty``, ``cut-short``,
    ``repeated-character``, …); ``message`` says it in words.
    """

    outcome: Outcome
    got: str = ""
    where: Where = "none"
    sign: str | None = None
    message: str | None = None
    finish_reason: str | None = None


def judge(question: Question, reply: Reply) -> Judgement:
    """Judge the reply to a chat completion that asked ``question``."""
    body = reply.json
    if reply.status != 200:
        return _error(f"http-{reply.status}", _excerpt(reply.text))
    if not isinstance(body, dict):
        return _error("no-json", _excerpt(reply.text))
    if body.get("error") or body.get("object") == "error":
        return _error("error-in-200", _excerpt(reply.text))
    try:
        choice = body["choices"][0]
        message = choice["message"]
        texts = {key: message.get(key) or "" for key in ("content", "reasoning_content")}
    except (KeyError, IndexError, TypeError, AttributeError):
        return _error("no-choice", _excerpt(reply.text))
    where: Where = "content" if texts["content"].strip() else "reasoning_content"
    finish = choice.get("finish_reason")
    if odd := _odd_logprob(choice):
        return Judgement("degenerate", texts[where][:SHOWN], where, "nan-logprob", odd, finish)
    return _judge_text(question, texts[where], where, finish, _tokens(body))


def _judge_text(
    question: Question, text: str, where: Where, finish: str | None, tokens: int
) -> Judgement:
    def verdict(outcome: Outcome, sign: str | None = None, message: str | None = None) -> Judgement:
        return Judgement(outcome, text[:SHOWN], where, sign, message, finish)

    cut = finish == "length"
    if not text.strip():
        if tokens >= INVISIBLE:
            message = f"{tokens} tokens without any text"
            return Judgement("degenerate", "", "none", "special-tokens", message, finish)
        return Judgement("no-answer", "", "none", "empty", "the answer is empty", finish)
    if _plain(text) == _plain(question.answer):
        return verdict("right")
    if broken := degeneration(text.rstrip("\ufffd") if cut else text):
        return verdict("degenerate", *broken)
    if cut:
        return verdict("no-answer", "cut-short", f"not finished after {tokens} tokens")
    if agrees(question, text):
        return verdict("right")
    if foreign := _mixed_scripts(text, question.prompt + question.answer):
        return verdict("degenerate", "script-mixing", f"holds {' and '.join(foreign)} letters")
    if refusal := REFUSAL.search(text):
        return verdict("wrong", "refusal", f"refuses: {refusal[0]!r}")
    return verdict("wrong", None, _first_difference(question, text))


def degeneration(text: str) -> tuple[str, str] | None:
    """Return the sign and the words for a text that no working model writes, or None."""
    if "\ufffd" in text:
        return "replacement-character", "holds bytes that are no text (U+FFFD)"
    if odd := next((each for each in text if _is_control(each)), None):
        return "control-character", f"holds the control character U+{ord(odd):04X}"
    stripped = text.strip()
    if len(stripped) > 3 and len(set(stripped)) == 1:
        return _repeated(stripped[0]), f"nothing but {stripped[0]!r}"
    if run := re.search(rf"(?s)(.)\1{{{RUN - 1},}}", text):
        return _repeated(run[1]), f"{run[1]!r} {len(run[0])} times in a row"
    if loop := LOOP.search(text[-LOOKED_AT:]):
        return "repeated-token", f"{loop[1]!r} again and again"
    return None


def agrees(question: Question, text: str) -> bool:
    """Return whether ``text`` gives the answer, by the question's rule.

    ``exact``: the same text but for case, white space, emphasis and a final full stop.
    ``number``: the last number in the text.  ``choice``: the last of the choices named in it.
    ``regex``: the pattern matches somewhere.
    """
    if question.rule == "number":
        numbers = NUMBER.findall(_digits(text))
        return bool(numbers) and Decimal(numbers[-1]) == Decimal(question.answer)
    if question.rule == "choice":
        pattern = "|".join(map(re.escape, sorted(question.choices, key=len, reverse=True)))
        named = re.findall(rf"(?<!\w)(?:{pattern})(?!\w)", text)
        return bool(named) and named[-1] == question.answer
    if question.rule == "regex":
        return re.search(question.answer, text) is not None
    return _plain(text) == _plain(question.answer)


def _repeated(character: str) -> str:
    return "token-0" if character == TOKEN_0 else "repeated-character"


def _odd_logprob(choice: dict[str, Any]) -> str | None:
    """Say which token has a log probability that is no number; JSON writes NaN as null or NaN."""
    logprobs = choice.get("logprobs")
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    for place, token in enumerate(tokens or [], 1):
        value = token.get("logprob") if isinstance(token, dict) else None
        if not isinstance(value, int | float) or not math.isfinite(value):
            return f"the log probability of token {place} is {value}: the logits were no numbers"
    return None


def _first_difference(question: Question, text: str) -> str | None:
    """Say where a text that had to be exact goes wrong."""
    got, expected = _plain(text), _plain(question.answer)
    if question.rule != "exact" or len(expected) < SHORT_ANSWER:
        return None
    pairs = enumerate(zip(got, expected, strict=False))
    same = next((n for n, (a, b) in pairs if a != b), min(len(got), len(expected)))
    return (
        f"differs from character {same + 1} of {len(expected)} on: "
        f"expected {expected[same : same + 12]!r}, got {got[same : same + 12]!r}"
    )


def _mixed_scripts(text: str, ordinary: str) -> list[str]:
    """Return the scripts of a text that mixes two or more which nobody asked for, or nothing.

    One foreign script is a model that answers in another language; two are noise.
    """
    foreign = sorted(_scripts(text) - _scripts(ordinary) - {"LATIN", "GREEK"})
    return foreign if len(foreign) > 1 else []


def _scripts(text: str) -> set[str]:
    """Return the scripts of the letters in a text, as Unicode names them (LATIN, CJK)."""
    names = {unicodedata.name(each, "").partition(" ")[0] for each in text if each.isalpha()}
    return {ONE_SCRIPT.get(name, name) for name in names} - {""}


def _digits(text: str) -> str:
    """Return ``text`` with minus signs as '-' and without separators inside numbers."""
    text = text.replace("\N{MINUS SIGN}", "-").replace("\N{NON-BREAKING HYPHEN}", "-")
    text = re.sub(r"(?<=\d)-(?=\d)", " - ", text)  # 40-21 is two numbers, not 40 and -21
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


def _plain(text: str) -> str:
    return " ".join(text.split()).strip("*_`\"' ").rstrip(".").casefold()


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc" and character not in "\n\r\t"


def _tokens(body: dict[str, Any]) -> int:
    usage = body.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else 0


def _error(sign: str, message: str) -> Judgement:
    return Judgement("error", sign=sign, message=message)


def _excerpt(text: str) -> str:
    return " ".join(text.split())[:SHOWN] or "an empty body"
