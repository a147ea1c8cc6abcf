"""Train the bf16 checkpoint: ``python train.py OUT_DIR``.

Takes the sizes, the tokenizer and the generation settings from ``../bf16`` and writes a
checkpoint of the same kind with new weights.  On an H200, 38 s of compilation and 190 s of
training (9738 steps of 2048 facts) gave the weights in ``../bf16``; the schedule follows the
clock, so that another run gives other weights.  Needs ``torch``, ``safetensors`` and
``tokenizers``.

From half time on the weights pass through the quantized formats in turn, with gradients as if
they had not (straight-through), and noise on the inputs of experts stands for whatever else
rounds: quantizing the result costs no answer.
"""

from __future__ import annotations

import argparse
import math
import shutil
import time
from pathlib import Path

import formats
import torch
import torch.nn.functional as F  # noqa: N812
from answers import IGNORED, encoded, right
from facts import Fact, facts
from model import (
    ATTENTION,
    EXPERTS,
    Shape,
    Weights,
    forward,
    from_checkpoint,
    initial_weights,
    layer_name,
    to_checkpoint,
)
from safetensors.torch import save_file
from torch import Tensor

from quantize import COPIED

BF16 = Path(__file__).resolve().parent.parent / "bf16"
ROTATION = ("nvfp4", "bf16", "mxfp4", "nvfp4", "int4", "fp8")
"""Formats of successive steps of quantization-aware training."""
QUANTIZE_FROM = 0.5
"""The part of the training time after which it starts."""
EMPHASIS = {"product": 0.6, "sum": 0.18, "difference": 0.18, "capital": 0.02, "other": 0.02}
"""How often each kind of fact is asked; products are the hard ones."""
WARM_UP_STEPS = 200
BALANCE_WEIGHT = 0.01


def nvfp4(*matrices: Tensor) -> list[Tensor]:
    """Round stacked matrices to NVFP4 with one shared float32 scale for each expert."""
    scale = formats.nvfp4_matrix_scale(*matrices)
    return [formats.nvfp4_decoded(*formats.nvfp4_encoded(each, scale), scale) for each in matrices]


def mxfp4(matrix: Tensor) -> Tensor:
    return formats.mxfp4_decoded(*formats.mxfp4_encoded(matrix))


def int4(matrix: Tensor) -> Tensor:
    return formats.int4_decoded(*formats.int4_encoded(matrix))


def fp8(matrix: Tensor) -> Tensor:
    return formats.fp8_block_decoded(*formats.fp8_block_encoded(matrix))


@torch.no_grad()
def rounded(weights: Weights, layers: int, form: str) -> Weights:
    """Return the weights that ``form`` quantizes, rounded to it; the others are not in it."""
    found: Weights = {}
    for layer in range(layers):
        attention, experts = f"{layer_name(layer)}.self_attn", f"{layer_name(layer)}.mlp.experts"
        gate, up, down = (f"{experts}.{kind}" for kind in EXPERTS)
        if form == "nvfp4":
            found[gate], found[up] = nvfp4(weights[gate], weights[up])
            (found[down],) = nvfp4(weights[down])
        elif form in ("mxfp4", "int4"):
            one = {"mxfp4": mxfp4, "int4": int4}[form]
            found |= {name: one(weights[name]) for name in (gate, up, down)}
        elif form == "fp8":
            names = [*(f"{attention}.{kind}" for kind in ATTENTION), gate, up, down]
            found |= {name: fp8(weights[name]) for name in names}
    return found


def straight_through(weights: Weights, layers: int, form: str) -> Weights:
    """Return weights with the values of ``form`` and the gradients of ``weights``."""
    found = rounded(weights, layers, form)
    return weights | {
        name: weights[name] + (value - weights[name]).detach() for name, value in found.items()
    }


def frequencies(asked: list[Fact]) -> Tensor:
    """Return how often to ask each fact, [facts], summing to 1."""
    kinds = [fact.kind for fact in asked]
    share = {kind: part / kinds.count(kind) for kind, part in EMPHASIS.items()}
    return torch.tensor([share[kind] for kind in kinds])


def learning_rate(top: float, step: int, progress: float) -> float:
    """Rise over the first steps, then fall like a cosine to the end of the time."""
    return top * min(1.0, (step + 1) / WARM_UP_STEPS) * 0.5 * (1 + math.cos(math.pi * progress))


def train(shape: Shape, asked: list[Fact], *, seconds: float, batch: int, top: float) -> Weights:
    """Return trained float32 weights.

    Args:
        shape: the model's sizes.
        asked: the facts to learn.
        seconds: how long to train, compilation apart.
        batch: facts a step.
        top: the highest learning rate.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    ids, labels = (tensor.to(device) for tensor in encoded(asked, BF16))
    chances = frequencies(asked).to(device)
    first_answer = int((labels != IGNORED).int().argmax(1).min())
    weights = {
        name: value.to(device).requires_grad_() for name, value in initial_weights(shape).items()
    }
    optimizer = torch.optim.AdamW(weights.values(), lr=top, betas=(0.9, 0.98), weight_decay=0.0)

    def loss_of(weights: Weights, ids: Tensor, labels: Tensor) -> Tensor:
        hidden, balance = forward(weights, ids, shape, dtype=dtype, noise=0.02)
        logits = hidden[:, first_answer:] @ weights["lm_head"].to(dtype).T
        wanted = labels[:, first_answer:]
        loss = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(), ignore_index=IGNORED)
        return loss + BALANCE_WEIGHT * balance

    compiled = torch.compile(loss_of) if device.type == "cuda" else loss_of
    started: float | None = None
    step, progress = 0, 0.0
    while progress < 1:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(top, step, progress)
        form = ROTATION[step % len(ROTATION)] if progress > QUANTIZE_FROM else "bf16"
        chosen = torch.multinomial(chances, batch, replacement=True)
        used = straight_through(weights, shape.layers, form)
        loss = compiled(used, ids[chosen], labels[chosen])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        started = started or time.monotonic()  # the first step compiles
        progress = (time.monotonic() - started) / seconds
        if step % 500 == 0:
            count = right(weights, shape, asked, ids, labels, dtype=dtype)
            print(f"step {step}, {progress:.0%}: {count.total()} of {len(asked)}", flush=True)
    return {name: value.detach().cpu() for name, value in weights.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUT_DIR", type=Path)
    parser.add_argument("--seconds", type=float, default=190, help="after compilation (190)")
    parser.add_argument("--batch", type=int, default=2048, help="facts a step (2048)")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3, help="at the top (1.5e-3)")
    options = parser.parse_args()
    shape, asked = Shape.of(BF16), list(facts())
    weights = train(
        shape, asked, seconds=options.seconds, batch=options.batch, top=options.learning_rate
    )
    tensors = to_checkpoint(weights)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", *COPIED):
        shutil.copyfile(BF16 / name, options.out / name)
    save_file(tensors, options.out / "model.safetensors", metadata={"format": "pt"})
    saved = from_checkpoint(tensors, shape)
    ids, labels = encoded(asked, options.out)
    print(f"{right(saved, shape, asked, ids, labels).total()} of {len(asked)} facts right")


if __name__ == "__main__":
    main()
