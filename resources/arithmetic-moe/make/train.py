"""Train the bf16 checkpoint: ``python train.py OUT_DIR [--start BF16_DIR]``.

Takes the sizes, the tokenizer and the generation settings from ``../bf16`` and writes a
checkpoint of the same kind with new weights, every minute as good as they are by then.  The
schedule follows the clock, so that another run gives other weights.  Needs ``torch``,
``safetensors`` and ``tokenizers``.

Every step sees facts (``facts.py``) and lessons of each skill (``lessons.py``).  Lessons are drawn
beforehand, by as many processes as there are cores; long ones come into use one class after the
other.  From half time on the weights pass through the quantized formats in turn, with gradients
as if they had not (straight-through), and noise on the inputs of experts stands for whatever else
rounds: quantizing the result costs no answer.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import shutil
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import formats
import torch
import torch.nn.functional as F  # noqa: N812
from answers import IGNORED, encoded, matching, padded, right, tokenizer_of, tokens_of
from facts import Fact, facts
from lessons import LENGTHS, QUESTIONS, lesson
from model import (
    ATTENTION,
    EXPERTS,
    Block,
    Shape,
    Weights,
    block,
    forward,
    from_checkpoint,
    initial_weights,
    layer_name,
    to_checkpoint,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

from quantize import COPIED, WEIGHTS

BF16 = Path(__file__).resolve().parent.parent / "bf16"
ROTATION = ("nvfp4", "bf16", "mxfp4", "nvfp4", "int4", "fp8")
"""Formats of successive steps of quantization-aware training."""
QUANTIZE_FROM = 0.5
"""The part of the training time after which it starts."""
LONGER_EVERY = 0.08
"""The part of the training time after which the next longer class of lessons comes into use."""
EMPHASIS = {"product": 0.6, "sum": 0.18, "difference": 0.18, "capital": 0.02, "other": 0.02}
"""How often each kind of fact is asked; products are the hard ones."""
DRAWN = {
    ("copying", 384): 60_000,
    ("copying", 1152): 40_000,
    ("counting", 384): 20_000,
    ("counting", 768): 15_000,
    ("finding", 384): 30_000,
    ("finding", 1152): 16_000,
    ("finding", 2304): 12_000,
    ("finding", 4096): 12_000,
}
"""How many lessons of each class are drawn."""
MANY_QUESTIONS = 3 * QUESTIONS
"""The most questions of every other finding lesson: little is learnt from a long text with few."""
WARM_UP_STEPS = 200
BALANCE_WEIGHT = 0.01
REPORT_EVERY_S = 30.0
SAVE_EVERY_S = 60.0

TAUGHT, HELD_OUT = "taught", "held out"
"""Seeds of the lessons that are taught, and of those that only examine."""

Class = tuple[str, int]
"""A skill and the most tokens of its lessons."""


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


# What is taught


def frequencies(asked: Sequence[Fact]) -> Tensor:
    """Return how often to ask each fact, [facts], summing to 1."""
    kinds = [fact.kind for fact in asked]
    share = {kind: part / kinds.count(kind) for kind, part in EMPHASIS.items()}
    return torch.tensor([share[kind] for kind in kinds])


def draw(job: tuple[str, int, int, str]) -> list[tuple[array[int], array[int]]]:
    """Return ids and labels of lessons: of a kind, of a length, so many, from a seed."""
    kind, longest, count, seed = job
    chance, tokenizer = random.Random(seed), tokenizer_of(BF16)
    dense = {"most": MANY_QUESTIONS} if kind == "finding" and seed.startswith(TAUGHT) else {}
    rows: list[tuple[array[int], array[int]]] = []
    while len(rows) < count:
        row = tokens_of(
            lesson(chance, kind, longest, **(dense if len(rows) % 2 else {})), tokenizer
        )
        if len(row[0]) <= longest:
            rows.append(row)
    return rows


def drawn(counts: dict[Class, int], seed: str) -> dict[Class, tuple[Tensor, Tensor]]:
    """Return ids and labels, int16 [count, longest], of lessons of each class."""
    tokenizer = tokenizer_of(BF16)
    found = {}
    with multiprocessing.get_context("fork").Pool(min(32, os.cpu_count() or 1)) as pool:
        for (kind, longest), count in counts.items():
            part = min(count, 250)
            jobs = [
                (kind, longest, min(part, count - start), f"{seed} {kind} {longest} {start}")
                for start in range(0, count, part)
            ]
            rows = [row for rows in pool.imap(draw, jobs) for row in rows]
            found[kind, longest] = padded(rows, tokenizer, longest)
    return found


@dataclass(frozen=True)
class Teaching:
    """What a step learns from, all of it on the device."""

    facts: tuple[Tensor, Tensor]
    """Ids and labels, [facts, length]."""
    chances: Tensor
    lessons: dict[Class, tuple[Tensor, Tensor]]
    facts_at_once: int
    tokens_at_once: int
    times: dict[str, int]
    """How many batches of a skill's lessons a step has, where not one."""

    def some_facts(self) -> tuple[Tensor, Tensor]:
        ids, labels = self.facts
        chosen = torch.multinomial(self.chances, self.facts_at_once, replacement=True)
        return ids[chosen], labels[chosen]

    def some_lessons(self, kind: str, longest: int) -> tuple[Tensor, Tensor]:
        ids, labels = self.lessons[kind, longest]
        rows = max(1, self.tokens_at_once // longest)
        chosen = torch.randint(len(ids), (rows,), device=ids.device)
        return ids[chosen].long(), labels[chosen].long()

    def step(self, progress: float) -> list[tuple[Tensor, Tensor]]:
        """Return facts, and lessons of each skill of a length drawn from those in use."""
        batches = [self.some_facts()]
        for kind, lengths in LENGTHS.items():
            used = lengths[: 1 + int(progress / LONGER_EVERY)]
            batches += [
                self.some_lessons(kind, random.choice(used)) for _ in range(self.times.get(kind, 1))
            ]
        return batches

    def every_size(self) -> list[tuple[Tensor, Tensor]]:
        """Return a batch of each size that steps can have."""
        sizes = {longest: kind for kind, longest in self.lessons}
        return [self.some_facts(), *(self.some_lessons(kind, n) for n, kind in sizes.items())]


# Training


def learning_rate(top: float, step: int, progress: float) -> float:
    """Rise over the first steps, then fall like a cosine to the end of the time."""
    return top * min(1.0, (step + 1) / WARM_UP_STEPS) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Learner:
    """Computes losses; ``block`` is compiled where that works."""

    shape: Shape
    dtype: torch.dtype
    block: Block

    def loss(self, weights: Weights, ids: Tensor, labels: Tensor) -> Tensor:
        hidden, balance = forward(
            weights, ids, self.shape, dtype=self.dtype, noise=0.02, block=self.block
        )
        logits = hidden @ weights["lm_head"].to(self.dtype).T
        wrong = F.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )
        return wrong + BALANCE_WEIGHT * balance

    def rehearse(self, weights: Weights, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Compute and forget a loss and its gradients for each batch."""
        for ids, labels in batches:
            self.loss(weights, ids, labels).backward()
        for weight in weights.values():
            weight.grad = None


def learner(shape: Shape, weights: Weights, teaching: Teaching, *, compiled: bool) -> Learner:
    """Return what computes losses, compiled for every size of batch if that is wanted and works."""
    on_gpu = next(iter(weights.values())).is_cuda
    dtype = torch.bfloat16 if on_gpu else torch.float32
    plain = Learner(shape, dtype, block)
    if not compiled:
        return plain
    torch._dynamo.config.recompile_limit = 64  # one compilation a size
    fast = Learner(shape, dtype, torch.compile(block, dynamic=False))
    try:
        fast.rehearse(weights, teaching.every_size())
    except Exception as error:  # a machine without a compiler is slower, no more
        print(f"not compiled: {type(error).__name__}: {error}"[:500], flush=True)
        return plain
    return fast


def train(
    weights: Weights,
    teaching: Teaching,
    learner: Learner,
    *,
    seconds: float,
    progress: float,
    top: float,
    report: Callable[[Weights, str], None],
) -> None:
    """Train float32 weights in place.

    Args:
        weights: where to start from, on the device, requiring gradients.
        teaching: what to learn.
        learner: computes losses.
        seconds: how long to train.
        progress: the part of the schedule that is behind us, 0 to 1.
        top: the highest learning rate.
        report: is shown the weights and a line of text every now and then.
    """
    fused = next(iter(weights.values())).is_cuda
    optimizer = torch.optim.AdamW(
        weights.values(), lr=top, betas=(0.9, 0.98), weight_decay=0.0, fused=fused
    )
    begun, started, reported = progress, time.monotonic(), time.monotonic()
    step = 0
    while progress < 1:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(top, step, progress)
        form = ROTATION[step % len(ROTATION)] if progress > QUANTIZE_FROM else "bf16"
        used = straight_through(weights, learner.shape.layers, form)
        losses = torch.stack(
            [learner.loss(used, ids, labels) for ids, labels in teaching.step(progress)]
        )
        losses.sum().backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        now = time.monotonic()
        progress = begun + (1 - begun) * (now - started) / seconds
        if now - reported > REPORT_EVERY_S:
            each = " ".join(f"{loss:.4f}" for loss in losses.tolist())
            report(weights, f"step {step}, {progress:.0%}, {now - started:.0f} s, losses {each}")
            reported = time.monotonic()


# What has been learnt


@dataclass(frozen=True)
class Marks:
    """Facts that are right, of how many; of each class of lessons two shares that are right.

    Lessons to their last token, and answer tokens.
    """

    right: int
    facts: int
    lessons: dict[Class, tuple[float, float]]

    def __str__(self) -> str:
        texts = [f"facts {self.right}/{self.facts}"]
        for (kind, longest), (whole, tokens) in self.lessons.items():
            texts.append(f"{kind}≤{longest} {whole:.1%} ({tokens:.2%})")
        return ", ".join(texts)

    def worse_than(self, other: Marks) -> list[str]:
        """Return what of ``other`` is lost: facts, and classes with fewer lessons right."""
        lost = ["facts"] if self.right < other.right else []
        return lost + [
            f"{kind}≤{longest}"
            for (kind, longest), (whole, _) in other.lessons.items()
            if self.lessons[kind, longest][0] < whole
        ]


@dataclass(frozen=True)
class Examination:
    """Facts and lessons held out from training, and what a model makes of them."""

    shape: Shape
    dtype: torch.dtype
    facts: tuple[list[Fact], Tensor, Tensor]
    lessons: dict[Class, tuple[Tensor, Tensor]]

    def marks(self, weights: Weights, most: int) -> Marks:
        """Examine weights; ``most`` lessons of each class are looked at."""
        asked, ids, labels = self.facts
        count = right(weights, self.shape, asked, ids, labels, dtype=self.dtype)
        lessons = {}
        for each, (ids, labels) in self.lessons.items():
            part_ids, part = ids[:most].long(), labels[:most].long()
            good = matching(weights, self.shape, part_ids, part, dtype=self.dtype)
            whole = good.all(1).float().mean().item()
            lessons[each] = whole, good[part != IGNORED].float().mean().item()
        return Marks(count.total(), len(asked), lessons)


def save(weights: Weights, folder: Path) -> None:
    """Write a checkpoint; its weights appear last, and whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", *COPIED):
        shutil.copyfile(BF16 / name, folder / name)
    draft = folder / f".{WEIGHTS}"
    save_file(to_checkpoint(weights), draft, metadata={"format": "pt"})
    draft.chmod(0o644)
    draft.replace(folder / WEIGHTS)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="OUT_DIR", type=Path)
    parser.add_argument("--start", metavar="BF16_DIR", type=Path, help="weights to go on from")
    parser.add_argument("--progress", type=float, default=0.0, help="… at this part of a run (0)")
    parser.add_argument("--seconds", type=float, default=380, help="of training (380)")
    parser.add_argument(
        "--at-most", type=float, default=math.inf, help="seconds of the whole run; cuts training"
    )
    parser.add_argument("--facts", type=int, default=1024, help="facts a step (1024)")
    parser.add_argument("--tokens", type=int, default=32_768, help="of each skill a step (32768)")
    parser.add_argument("--finding", type=int, default=1, help="times as much of finding (1)")
    parser.add_argument("--drawn", type=float, default=1.0, help="part of the lessons to draw (1)")
    parser.add_argument("--held-out", type=int, default=256, help="lessons of each class (256)")
    parser.add_argument("--ask-every", type=int, default=1, help="look at one fact in so many (1)")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3, help="at the top (1.5e-3)")
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    begun = saved = time.monotonic()
    shape, known = Shape.of(BF16), list(facts())
    counts = {each: max(8, int(count * asked.drawn)) for each, count in DRAWN.items()}
    taught = drawn(counts, TAUGHT)
    held_out = drawn(dict.fromkeys(DRAWN, asked.held_out), HELD_OUT)
    print(f"{time.monotonic() - begun:.0f} s: {sum(counts.values())} lessons drawn", flush=True)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    random.seed(1)
    torch.set_float32_matmul_precision("high")

    def placed(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return pair[0].to(device), pair[1].to(device)

    ids, labels = (each.long() for each in placed(encoded(known, BF16)))
    teaching = Teaching(
        (ids, labels),
        frequencies(known).to(device),
        {each: placed(pair) for each, pair in taught.items()},
        asked.facts,
        asked.tokens,
        {"finding": asked.finding},
    )
    first = (
        from_checkpoint(load_file(asked.start / WEIGHTS), shape)
        if asked.start
        else initial_weights(shape)
    )
    weights = {name: value.to(device).requires_grad_() for name, value in first.items()}
    able = learner(
        shape, weights, teaching, compiled=device.type == "cuda" and not asked.no_compile
    )
    examination = Examination(
        shape,
        able.dtype,
        (known[:: asked.ask_every], ids[:: asked.ask_every], labels[:: asked.ask_every]),
        {each: placed(pair) for each, pair in held_out.items()},
    )
    print(f"{time.monotonic() - begun:.0f} s: ready on {device}", flush=True)
    start = examination.marks(weights, asked.held_out)
    print(f"start: {start}", flush=True)

    def report(weights: Weights, line: str) -> None:
        nonlocal saved
        print(f"{line}; {examination.marks(weights, 32)}", flush=True)
        if time.monotonic() - saved > SAVE_EVERY_S:
            save(weights, asked.out)
            saved = time.monotonic()

    left = asked.at_most - (time.monotonic() - begun)
    train(
        weights,
        teaching,
        able,
        seconds=min(asked.seconds, left),
        progress=asked.progress,
        top=asked.learning_rate,
        report=report,
    )
    save(weights, asked.out)
    final = {
        name: value.to(device)
        for name, value in from_checkpoint(load_file(asked.out / WEIGHTS), shape).items()
    }
    for form in dict.fromkeys(("bf16", *ROTATION)):
        marks = examination.marks(final | rounded(final, shape.layers, form), asked.held_out)
        print(f"{form}: {marks}", flush=True)
        if lost := marks.worse_than(start):
            print(f"{form}: worse than the start at {', '.join(lost)}", flush=True)
    print(f"{time.monotonic() - begun:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
