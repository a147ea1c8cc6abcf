"""Measure how large the inputs of every linear layer get: ``python calibrate.py [BF16_DIR]``.

Writes ``calibration.json`` beside this file, from which ``quantize.py`` takes its activation
scales.  Computed in float64 and rounded to bf16's eight bits, so that the order in which a
machine adds cannot show: the result is the same everywhere.  Needs ``torch``, ``safetensors``
and ``tokenizers``; some seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from pathlib import Path

import torch
from answers import IGNORED, encoded
from facts import facts
from lessons import LENGTHS, lesson
from model import Shape, forward, from_checkpoint
from safetensors.torch import load_file
from torch import Tensor

HERE = Path(__file__).resolve().parent
EVERY = 40
"""One fact in so many is shown to the model."""
LESSONS = 12
"""So many short lessons of each skill, too."""


def ranges(folder: Path) -> dict[str, float]:
    """Return the largest magnitude of each linear layer's inputs in the checkpoint ``folder``."""
    shape = Shape.of(folder)
    tensors = load_file(folder / "model.safetensors")
    weights = {name: value.double() for name, value in from_checkpoint(tensors, shape).items()}
    chance = random.Random("calibration")
    lessons = [lesson(chance, kind, LENGTHS[kind][0]) for kind in LENGTHS for _ in range(LESSONS)]
    ids, labels = encoded([*list(facts())[::EVERY], *lessons], folder)
    found: dict[str, float] = {}

    def observe(name: str, inputs: Tensor) -> None:
        top = inputs.abs().max().item() if inputs.numel() else 0.0
        found[name] = max(found.get(name, 0.0), top)

    lengths = last_asked(labels) + 1
    with torch.no_grad():
        for length in lengths.unique().tolist():  # by length: padding must not be measured
            same = ids[lengths == length, :length]
            forward(weights, same, shape, dtype=torch.float64, observe=observe)
    return {name: rounded(top) for name, top in found.items()}


def last_asked(labels: Tensor) -> Tensor:
    """Return the last position of each row of ``labels`` from which a token is asked, [facts]."""
    asked = labels != IGNORED
    return asked.shape[1] - 1 - asked.flip(1).int().argmax(1)


def rounded(top: float) -> float:
    """Round to bf16; 1 for a layer that saw no token, since a scale must not be 0."""
    return torch.tensor(top or 1.0, dtype=torch.float64).to(torch.bfloat16).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", nargs="?", type=Path, default=HERE.parent / "bf16")
    folder = parser.parse_args().checkpoint
    weights = (folder / "model.safetensors").read_bytes()
    measured = {
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "largest_inputs": ranges(folder),
    }
    (HERE / "calibration.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
