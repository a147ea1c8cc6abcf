"""The two documents: a server's predictions on the fixed texts, and how they compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from bringup import artifact
from bringup.artifact import Document
from bringup.endpoint import NoReplyError
from bringup.reference import Bound, Comparison, NoReadingError, Place, Reading, compare, read

PREDICTIONS = "predictions/1"
REFERENCE = "reference/1"

BATCH = 8
"""Texts that are read at once for the comparison of alone with within a batch."""


def load(file: Path) -> list[str]:
    """Read the texts of ``file``.

    Raises:
        ValueError: it holds no list of texts; one line.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        texts = content["texts"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: holds no texts: {' '.join(str(error).split())}") from None
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise ValueError(f"{file}: texts must be a list of texts")
    return texts


def predictions(
    experiment: str,
    boot: str,
    url: str,
    texts: Sequence[str],
    *,
    timeout_s: float,
    api_key: str | None = None,
) -> Document:
    """Return predictions.json: what a server predicts, and how far it is from itself.

    The texts are read alone, alone once more, and ``BATCH`` at a time: ``again`` is chance,
    ``batch`` is what the company of other requests changes.  A server that gives no
    probabilities has failed.
    """

    def once(concurrency: int) -> Reading:
        return read(url, texts, concurrency=concurrency, timeout_s=timeout_s, api_key=api_key)

    who: dict[str, Any] = {"experiment": experiment, "boot": boot}
    try:
        alone = once(1)
        noise = {"again": compare(alone, once(1)), "batch": compare(alone, once(BATCH))}
    except (NoReadingError, NoReplyError) as error:
        return artifact.document(
            PREDICTIONS, "failed", artifact.reason("no-predictions", str(error)), **who
        )
    return artifact.document(
        PREDICTIONS,
        **who,
        noise={name: asdict(each) for name, each in noise.items()},
        readings=[[_written(place) for place in text] for text in alone],
    )


def reference(experiment: str, of: str, own: Document, base: Document) -> Document:
    """Return reference.json: how far an experiment's predictions are from its reference's.

    Args:
        experiment: its name.
        of: the reference: an experiment's name, or a file.
        own: the experiment's ``predictions.json``.
        base: the reference's.
    """
    who: dict[str, Any] = {"experiment": experiment, "reference": of}
    if cause := artifact.stopping(own, base):
        return artifact.skipped(REFERENCE, cause, **who)
    try:
        seen = compare(_read_back(base), _read_back(own))
    except NoReadingError as error:
        return artifact.document(
            REFERENCE, "failed", artifact.reason("not-comparable", str(error)), **who
        )
    bound = Bound.of_noise([_noise(document, name) for document in (own, base) for name in NOISES])
    beyond = bound.broken_by(seen)
    return artifact.document(
        REFERENCE,
        "wrong" if beyond else "ok",
        artifact.reason("unlike-reference", f"unlike {of}: {'; '.join(beyond)}", hint=HINT)
        if beyond
        else None,
        **who,
        verdict="differs" if beyond else "agrees",
        figures=asdict(seen),
        bound=asdict(bound),
        batch=own["noise"]["batch"],
    )


NOISES = ("again", "batch")
HINT = (
    "Quantized weights differ from their origin by nature: is it more than for another backend of "
    "the same checkpoint?"
)


def _noise(document: Document, name: str) -> Comparison:
    return Comparison(**document["noise"][name])


def _written(place: Place) -> list[Any]:
    top = [[token, _rounded(value)] for token, value in place.top.items()]
    return [place.token, _rounded(place.logprob), top]


def _rounded(value: float) -> float:
    """Return a log probability as JSON can hold it: -inf is a probability of 0."""
    return round(value, 6) if math.isfinite(value) else -1000.0


def _read_back(document: Mapping[str, Any]) -> Reading:
    return [
        [Place(token, logprob, {each[0]: each[1] for each in top}) for token, logprob, top in text]
        for text in document["readings"]
    ]
