"""Facts and lessons as token ids, and how many a model gets right.  Needs ``tokenizers``."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from model import Shape, Weights, forward
from tokenizers import Tokenizer
from torch import Tensor

IGNORED = -100
"""The label of positions that are not part of an answer."""
TOKENS_AT_ONCE = 2**16
"""How many are computed at once where only answers are counted."""


class Asked(Protocol):
    """A fact or a lesson."""

    @property
    def kind(self) -> str: ...

    def parts(self) -> list[tuple[str, str]]:
        """Return what the model is shown and what it should then say, turn by turn."""


def tokenizer_of(folder: Path) -> Tokenizer:
    """Return the tokenizer of the checkpoint in ``folder``."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def tokens_of(asked: Asked, tokenizer: Tokenizer) -> tuple[array[int], array[int]]:
    """Return a conversation's ids, and for each the id that should come next, or IGNORED.

    What should come next are the tokens of answers and the mark that ends them.
    """
    end = tokenizer.token_to_id("<|im_end|>")
    ids, labels = array("h"), array("h")
    for shown, answer in asked.parts():
        start = tokenizer.encode(shown).ids
        said = [*tokenizer.encode(answer).ids, end]
        ids.extend(start + said)
        labels.extend([IGNORED] * (len(start) - 1) + said + [IGNORED])
    return ids, labels


def encoded(asked: Sequence[Asked], folder: Path) -> tuple[Tensor, Tensor]:
    """Return ids and labels, both [asked, length], padded on the right.

    Args:
        asked: what to encode.
        folder: the checkpoint whose ``tokenizer.json`` to use.
    """
    tokenizer = tokenizer_of(folder)
    ids, labels = padded([tokens_of(each, tokenizer) for each in asked], tokenizer)
    return ids.long(), labels.long()


def padded(
    rows: Sequence[tuple[array[int], array[int]]], tokenizer: Tokenizer, length: int = 0
) -> tuple[Tensor, Tensor]:
    """Return rows of ids and labels as two int16 tensors, [rows, length or the longest row's]."""
    length = max(length, *(len(ids) for ids, _ in rows))
    padding = tokenizer.token_to_id("<|endoftext|>")
    every_id = torch.full((len(rows), length), padding, dtype=torch.int16)
    every_label = torch.full((len(rows), length), IGNORED, dtype=torch.int16)
    for row, (ids, labels) in enumerate(rows):
        every_id[row, : len(ids)] = torch.frombuffer(ids, dtype=torch.int16)
        every_label[row, : len(ids)] = torch.frombuffer(labels, dtype=torch.int16)
    return every_id, every_label


@torch.no_grad()
def matching(
    weights: Weights,
    shape: Shape,
    ids: Tensor,
    labels: Tensor,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Return where the likeliest next token is the label, or none is asked: bool, as ``labels``.

    With the right answer given so far this is greedy decoding: a first wrong token shows.
    """
    head = weights["lm_head"].to(dtype)
    rows = max(1, TOKENS_AT_ONCE // ids.shape[1])
    found = []
    for part, wanted in zip(ids.split(rows), labels.split(rows), strict=True):
        hidden, _ = forward(weights, part, shape, dtype=dtype)
        found.append(((hidden @ head.T).argmax(-1) == wanted) | (wanted == IGNORED))
    return torch.cat(found)


def right(
    weights: Weights,
    shape: Shape,
    asked: Sequence[Asked],
    ids: Tensor,
    labels: Tensor,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> Counter[str]:
    """Count the facts or lessons of each kind whose every answer token is the most likely one."""
    matches = matching(weights, shape, ids, labels, dtype=dtype).all(1).tolist()
    count: Counter[str] = Counter()
    for each, match in zip(asked, matches, strict=True):
        count[each.kind] += match
    return count
