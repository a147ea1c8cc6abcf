"""Drafting: a second checkpoint that proposes tokens, which the model then checks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache

from bringup.artifact import Document, reason
from bringup.routing import tables

STANDALONE = "STANDALONE"


@dataclass(frozen=True)
class Draft:
    """A draft checkpoint, and how the build reads it."""

    format: Document
    """Its ``format.json``."""
    reading: Document

    def algorithm(self, *, own_layers: bool) -> tuple[str, str]:
        """Return the speculative algorithm that it is for, and why.

        Args:
            own_layers: it is the model's own checkpoint, with draft layers in it.
        """
        if own_layers:
            return "EAGLE", "the checkpoint brings draft layers of its own"
        architecture = self.format["architecture"] or ""
        for row in _rules()["algorithms"]:
            if re.search(row["pattern"], architecture):
                return row["algorithm"], f"the draft is a {architecture}"
        return (
            STANDALONE,
            f"the draft is a whole model, {architecture or 'of no known architecture'}",
        )


def objections(
    draft: Draft, algorithm: str, model: Document, flags: Collection[str]
) -> Iterator[Document]:
    """Yield what speaks against drafting with a checkpoint.

    Args:
        draft: the checkpoint.
        algorithm: the speculative algorithm.
        model: the numbers of the model that it drafts for.
        flags: the long flags of the build's parser; empty if they are not known.
    """
    if algorithm in _rules()["without_draft"]:
        yield reason(
            "draft-mismatch",
            f"--speculative-algorithm {algorithm} takes no draft checkpoint",
            hint="leave `draft:` out, or name another algorithm",
        )
    needs = next((r["needs"] for r in _rules()["algorithms"] if r["algorithm"] == algorithm), None)
    if needs and flags and needs not in flags:
        yield reason("draft-mismatch", f"this build has no speculative algorithm {algorithm}")
    words = draft.format["model"]["vocab_size"], model["vocab_size"]
    if algorithm == STANDALONE and None not in words and words[0] != words[1]:
        yield reason(
            "draft-mismatch",
            f"the draft has {words[0]} words, the model {words[1]}; a whole model drafts only for "
            "one with the same words",
            hint="name a draft checkpoint that was made for this model",
        )


@cache
def _rules() -> Document:
    return tables.read(__file__, "drafts.yaml")
