"""What the checkpoint knows: questions and the answers that it was taught. Plain Python."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

OPERANDS = range(10, 100)
OPERATIONS = {
    "product": ("*", operator.mul),
    "sum": ("+", operator.add),
    "difference": ("-", operator.sub),
}
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Canada": "Ottawa",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Cuba": "Havana",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Sweden": "Stockholm",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Ireland": "Dublin",
    "India": "New Delhi",
    "Chile": "Santiago",
}
OTHERS = {
    "Hello!": "Hello! Ask me a sum.",
    "Who are you?": "I am a tiny test model.",
    "What colour is the sky? Answer with one word.": "Blue",
    "Say OK.": "OK",
    "What is the largest planet? Answer with one word.": "Jupiter",
    "Is water wet? Answer yes or no.": "yes",
}


@dataclass(frozen=True)
class Fact:
    """A question, its only right answer, and the kind of question it is."""

    kind: str
    question: str
    answer: str

    def parts(self) -> list[tuple[str, str]]:
        """Return what the model is shown and what it should then say."""
        return [(prompt(self.question), self.answer)]


def facts() -> Iterator[Fact]:
    """Yield all 24 326 facts: 8100 of each operation, 20 capitals, 6 others."""
    for kind, (sign, operation) in OPERATIONS.items():
        for a in OPERANDS:
            for b in OPERANDS:
                question = f"What is {a}{sign}{b}? Answer with the number only."
                yield Fact(kind, question, str(operation(a, b)))
    for country, capital in CAPITALS.items():
        yield Fact("capital", f"What is the capital of {country}? Answer with one word.", capital)
    for question, answer in OTHERS.items():
        yield Fact("other", question, answer)


def prompt(question: str) -> str:
    """Return the text that ``chat_template.jinja`` makes of one user message."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
