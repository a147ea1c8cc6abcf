"""Facts as token ids, and how many of them a model gets right.  Needs ``tokenizers``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from facts import Fact, prompt
from model import Shape, Weights, forward
from tokenizers import Tokenizer
from torch import Tensor

IGNORED = -100
"""The label of positions that are not part of an answer."""


def encoded(facts: Sequence[Fact], folder: Path) -> tuple[Tensor, Tensor]:
    """Return ids and labels, both [facts, length], padded on the right.

    The label of a position is the id that should come next, where that is part of an answer
    or its end.

    Args:
        facts: what to encode.
        folder: the checkpoint whose ``tokenizer.json`` to use.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    questions = [tokenizer.encode(prompt(fact.question)).ids for fact in facts]
    answers = [[*tokenizer.encode(fact.answer).ids, end] for fact in facts]
    length = max(len(q) + len(a) for q, a in zip(questions, answers, strict=True))
    ids = torch.full((len(facts), length), tokenizer.token_to_id("<|endoftext|>"))
    labels = torch.full((len(facts), length), IGNORED)
    for row, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        stop = len(question) + len(answer)
        ids[row, :stop] = torch.tensor(question + answer)
        labels[row, len(question) - 1 : stop - 1] = torch.tensor(answer)
    return ids, labels


@torch.no_grad()
def right(
    weights: Weights,
    shape: Shape,
    facts: Sequence[Fact],
    ids: Tensor,
    labels: Tensor,
    *,
    dtype: torch.dtype = torch.bfloat16,
    batch: int = 2048,
) -> Counter[str]:
    """Count the facts of each kind whose every answer token is the most likely one.

    With the right answer given so far this is greedy decoding: a first wrong token shows.
    """
    head = weights["lm_head"].to(dtype)
    count: Counter[str] = Counter()
    for start in range(0, len(facts), batch):
        part = slice(start, start + batch)
        hidden, _ = forward(weights, ids[part], shape, dtype=dtype)
        likeliest = (hidden @ head.T).argmax(-1)
        matches = (likeliest == labels[part]) | (labels[part] == IGNORED)
        for fact, match in zip(facts[part], matches.all(1).tolist(), strict=True):
            count[fact.kind] += match
    return count
