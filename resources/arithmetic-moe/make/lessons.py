"""What the checkpoint can do beside knowing facts: copy, count and find.  Plain Python.

Facts are a list; skills are drawn at random without end, so that nothing can be learned by heart.
A lesson is a conversation of one or more turns in the wording of ``resources/probes``.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

from facts import prompt

_WORDS = """
the of and to in a is that it was for on are as with his they at be this from have or by one had
not but what all were when we there can an your which their said if do will each about how up out
them then she many some so these would other into has more her two like him see time could no make
than first been its who now people my made over did down only way find use may water long little
very after words called just where most know great through much before line right too means old any
same tell boy follow came want show also around form small set put end does another well large must
"""
WORDS = _WORDS.split()
"""Ordinary words, half of those in texts to be copied; the others are made up."""
ONSETS = (*"bcdfghjklmnprstvwyz", "bl", "br", "ch", "dr", "fl", "gr", "pl", "qu", "sh", "st", "th")
VOWELS = (*"aeiouy", "ai", "ea", "ee", "ie", "oo", "ou")
CODAS = ("", "", "", *"nrstlm", "nd", "st", "ck", "ng", "rt")


@dataclass(frozen=True)
class Lesson:
    """A conversation: its kind, and what is asked and to be answered in turn."""

    kind: str
    turns: tuple[tuple[str, str], ...]

    def parts(self) -> list[tuple[str, str]]:
        """Return what the model is shown and what it should then say, turn by turn.

        The mark that ends an answer is part of neither.
        """
        (question, answer), *others = self.turns
        return [
            (prompt(question), answer),
            *((f"\n{prompt(question)}", answer) for question, answer in others),
        ]


# Copying


def made_up_word(chance: random.Random) -> str:
    syllables = range(chance.choice((1, 2, 2, 3)))
    return "".join(
        chance.choice(ONSETS) + chance.choice(VOWELS) + chance.choice(CODAS) for _ in syllables
    )


def sentences(chance: random.Random, size: int) -> str:
    """Words and numbers with the punctuation of prose, about ``size`` characters."""
    text = ""
    capital = True
    while len(text) < size:
        sort = chance.random()
        word = made_up_word(chance) if sort > 0.45 else chance.choice(WORDS)
        if sort < 0.08:
            word = str(chance.randrange(10 ** chance.randint(1, 4)))
        if capital or chance.random() < 0.08:
            word = word.capitalize()
        mark = chance.choice((".", ".", "?", "!")) if chance.random() < 0.1 else ""
        capital = bool(mark)
        if not mark and chance.random() < 0.12:
            mark = chance.choice((",", ",", ",", ";", ":", " -"))
        text += f"{word}{mark} "
    return text.rstrip(" ,;:-") + chance.choice((".", ".", ""))


def few_words(chance: random.Random, size: int) -> str:
    """A handful of words over and over, so that much must be read to know the place."""
    words = [made_up_word(chance) for _ in range(chance.randint(4, 12))]
    text = ""
    while len(text) < size:
        text += chance.choice(words) + " "
    return text.rstrip()


def identifiers(chance: random.Random, size: int) -> str:
    """Codes of one pattern, such as ``k7f-2291-aq``, in a list."""
    sorts = {"l": string.ascii_lowercase, "d": string.digits, "u": string.ascii_uppercase}
    pattern = "-".join(
        "".join(chance.choice("lldd" if chance.random() < 0.8 else "u") for _ in range(part))
        for part in (chance.randint(1, 5) for _ in range(chance.randint(1, 4)))
    )
    between = chance.choice((", ", ", ", " ", "\n", "; "))
    found: list[str] = []
    while sum(map(len, found)) + len(between) * len(found) < size:
        found.append("".join(chance.choice(sorts.get(sign, sign)) for sign in pattern))
    return between.join(found)


def digits(chance: random.Random, size: int) -> str:
    return " ".join(
        str(chance.randrange(10 ** chance.randint(1, 8))) for _ in range(max(1, size // 5))
    )


def signs(chance: random.Random, size: int) -> str:
    """Any printable ASCII."""
    text = "".join(
        chance.choices(string.ascii_letters + string.digits + string.punctuation, k=size)
    )
    for _ in range(size // 8):
        place = chance.randrange(1, max(2, size - 1))
        text = f"{text[:place]} {text[place + 1 :]}"
    return " ".join(text.split())


TEXTS: dict[Callable[[random.Random, int], str], float] = {
    sentences: 0.45,
    identifiers: 0.25,
    signs: 0.1,
    digits: 0.1,
    few_words: 0.1,
}


def copying(chance: random.Random, tokens: int) -> Lesson:
    """Copy a text so long that the lesson takes about ``tokens`` tokens."""
    (make,) = chance.choices(list(TEXTS), list(TEXTS.values()))
    text = make(chance, max(8, int((tokens - 70) / 2)))
    question = f"Copy the following text exactly, and write nothing else: {text}"
    return Lesson("copying", ((question, text),))


# Counting


def counting(chance: random.Random, tokens: int) -> Lesson:
    """Count up, down or in steps, about ``tokens`` tokens."""
    style = chance.choice(("up", "down", "step"))
    step = chance.randint(2, 25) if style == "step" else 1
    first = 1 if chance.random() < 0.6 else chance.randint(1, 900 // step)
    numbers = [first * step]
    room = max(16, tokens - 90)
    while room > 0 and numbers[-1] < 9999 - step:
        numbers.append(numbers[-1] + step)
        room -= len(str(numbers[-1])) + 2
    what = f"the whole numbers from {numbers[0]} to {numbers[-1]}"
    if style == "down":
        numbers.reverse()
        what = f"the whole numbers from {numbers[0]} down to {numbers[-1]}"
    if style == "step":
        what = f"the multiples of {step} from {numbers[0]} to {numbers[-1]}"
    question = f"Write {what}, separated by a comma and a space, and nothing else."
    return Lesson("counting", ((question, ", ".join(map(str, numbers))),))


# Finding

FIELDS = {
    "weight": "What weight in kg does record {} have? Answer with the number only.",
    "shelf": "On which shelf is record {}? Answer with the number only.",
    "box": "In which box is record {}? Answer with the number only.",
}
TOKENS_OF_A_RECORD = 39
TOKENS_OF_A_QUESTION = 62
QUESTIONS = 8
"""The most questions of a conversation that looks like one of the suite."""


def finding(chance: random.Random, tokens: int, most: int = QUESTIONS) -> Lesson:
    """Say what stands in some of many numbered records, about ``tokens`` tokens.

    ``most`` questions or fewer: a third of the tokens at most.

    Mostly the records are numbered from 1 in order, as in the suite; else their order is mixed
    or they start elsewhere, so that they have to be read.
    """
    questions = min(most, max(1, tokens // 3 // TOKENS_OF_A_QUESTION))
    count = max(2, (tokens - questions * TOKENS_OF_A_QUESTION) // TOKENS_OF_A_RECORD)
    first = 1 if chance.random() < 0.7 else chance.randint(1, 300)
    numbers = list(range(first, first + count))
    if chance.random() < 0.25:
        chance.shuffle(numbers)
    records = {
        number: {
            "shelf": chance.randrange(100),
            "box": chance.randrange(100),
            "weight": chance.randrange(1, 200),
        }
        for number in numbers
    }
    lines = [
        f"Record {n}: shelf {r['shelf']}, box {r['box']}, weight {r['weight']} kg."
        for n, r in records.items()
    ]
    turns = []
    for _ in range(questions):
        number, field = chance.choice(numbers), chance.choice(("weight", "weight", "shelf", "box"))
        turns.append((FIELDS[field].format(number), str(records[number][field])))
    (question, answer), *others = turns
    return Lesson("finding", (("\n".join(lines) + "\n\n" + question, answer), *others))


SKILLS: dict[str, Callable[..., Lesson]] = {
    "copying": copying,
    "counting": counting,
    "finding": finding,
}
LENGTHS = {
    "copying": (384, 1152),
    "counting": (384, 768),
    "finding": (384, 1152, 2304, 4096),
}
"""How many tokens lessons of each kind take at most, by class."""


def lesson(chance: random.Random, kind: str, longest: int, **more: int) -> Lesson:
    """Draw a lesson of at most ``longest`` tokens and more than the next shorter class has.

    The makers above aim at a number of tokens: some lessons are a little longer.  ``more`` is for
    the maker.
    """
    shorter = max((length for length in LENGTHS[kind] if length < longest), default=96)
    return SKILLS[kind](chance, chance.randint(shorter, longest), **more)
