"""Damaged copies of a bf16 checkpoint: ``python corrupt.py BF16_DIR OUT_DIR [CASE …]``.

Writes ``OUT_DIR/<case>`` for each case, or those named, and prints a JSON line for it: its kind,
strength and placement.
Faults of quantized kernels are put into weights that were quantized and dequantized again, as a
CPU serves bf16 only: what the faulty kernel would have multiplied by is what stands in the file.
Runs in an engine's interpreter, which has ``torch`` and ``safetensors``.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "resources/arithmetic-moe/make"))

import formats
from model import EXPERTS, Shape, Weights, from_checkpoint, layer_name, to_checkpoint
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
PLACEMENTS = 2
"""Every fault is put into so many different places, drawn from a seed."""


@dataclass(frozen=True)
class Place:
    """Where a fault is: layers, and the experts of each; None is all of them."""

    strength: str
    layers: tuple[int, ...]
    experts: tuple[int, ...] | None


def places(shape: Shape, number: int) -> dict[str, Place]:
    """Return the places of one placement: one expert, one layer, every layer."""
    chance = torch.Generator().manual_seed(number)
    layer = int(torch.randint(shape.layers, (), generator=chance))
    expert = int(torch.randint(shape.experts, (), generator=chance))
    return {
        "one expert": Place("one expert", (layer,), (expert,)),
        "one layer": Place("one layer", (layer,), None),
        "all layers": Place("all layers", tuple(range(shape.layers)), None),
    }


def with_experts(weights: Weights, place: Place, change: Callable[[Tensor], Tensor]) -> Weights:
    """Return weights in which the matrices of the experts in ``place`` went through ``change``."""
    found = dict(weights)
    for layer in place.layers:
        for kind in EXPERTS:
            name = f"{layer_name(layer)}.mlp.experts.{kind}"
            stacked = weights[name].clone()
            chosen = list(place.experts) if place.experts is not None else slice(None)
            stacked[chosen] = change(stacked[chosen])
            found[name] = stacked
    return found


# Faults of kernels and loaders, as what they make of a stack of matrices [experts, rows, columns]


def group_off_by_one(matrix: Tensor) -> Tensor:
    scale = formats.nvfp4_matrix_scale(matrix)
    codes, scales = formats.nvfp4_encoded(matrix, scale)
    rolled = scales.view(torch.uint8).roll(1, -1).view(formats.E4M3)
    return formats.nvfp4_decoded(codes, rolled, scale)


def nibbles_swapped(matrix: Tensor) -> Tensor:
    scale = formats.nvfp4_matrix_scale(matrix)
    codes, scales = formats.nvfp4_encoded(matrix, scale)
    return formats.nvfp4_decoded(codes.unflatten(-1, (-1, 2)).flip(-1).flatten(-2), scales, scale)


def scale_doubled(matrix: Tensor) -> Tensor:
    return 2 * matrix


def scale_of_a_block_doubled(matrix: Tensor) -> Tensor:
    changed = matrix.clone()
    changed[..., :1, : formats.NVFP4_BLOCK] *= 2
    return changed


def scale_of_a_column_of_blocks_doubled(matrix: Tensor) -> Tensor:
    changed = matrix.clone()
    changed[..., : formats.NVFP4_BLOCK] *= 2
    return changed


def global_scale_dropped(matrix: Tensor) -> Tensor:
    return matrix / formats.nvfp4_matrix_scale(matrix)


def global_scale_inverted(matrix: Tensor) -> Tensor:
    return matrix / formats.nvfp4_matrix_scale(matrix) ** 2


def e8m0_as_e4m3(matrix: Tensor) -> Tensor:
    codes, scales = formats.mxfp4_encoded(matrix)
    values = formats.blocks(formats.e2m1_values(codes), formats.MXFP4_BLOCK)
    return (values * scales.view(formats.E4M3).float()[..., None]).flatten(-2)


def another_revision(deviations: float) -> Callable[[Tensor], Tensor]:
    """Return what adds noise of so many standard deviations of each matrix: later training."""

    def change(matrix: Tensor) -> Tensor:
        chance = torch.Generator().manual_seed(1)
        noise = torch.randn(matrix.shape, generator=chance)
        return matrix + deviations * matrix.std((-2, -1), keepdim=True) * noise

    return change


EXPERT_FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "quantization group off by one": group_off_by_one,
    "nibbles swapped": nibbles_swapped,
    "scale wrong by 2": scale_doubled,
    "global scale dropped": global_scale_dropped,
    "global scale inverted": global_scale_inverted,
    "E8M0 read as E4M3": e8m0_as_e4m3,
}
SMALL_SCALE_FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "one block of one expert": scale_of_a_block_doubled,
    "a column of blocks of one expert": scale_of_a_column_of_blocks_doubled,
}


def swapped(weights: Weights, layers: tuple[int, ...]) -> Weights:
    """Return weights in which the first two experts of each of ``layers`` changed places."""
    found = dict(weights)
    for layer in layers:
        for kind in EXPERTS:
            name = f"{layer_name(layer)}.mlp.experts.{kind}"
            order = [1, 0, *range(2, len(weights[name]))]
            found[name] = weights[name][order]
    return found


def without_head(weights: Weights, shape: Shape, layers: tuple[int, ...], head: int) -> Weights:
    found = dict(weights)
    for layer in layers:
        name = f"{layer_name(layer)}.self_attn.o_proj"
        found[name] = weights[name].clone()
        found[name][:, head * shape.head_size : (head + 1) * shape.head_size] = 0
    return found


Case = tuple[str, str, int, Callable[[], Weights]]
"""Kind, strength, placement, and what makes the weights."""


def cases(weights: Weights, shape: Shape) -> Iterator[Case]:
    """Yield every case; a fault in all layers is the same in every placement, and there once."""
    for number in range(PLACEMENTS):
        where = places(shape, number)
        one, layer, every = where.values()
        spots = [one, layer, *([every] if number == 0 else [])]
        for kind, change in EXPERT_FAULTS.items():
            for spot in spots:
                yield kind, spot.strength, number, partial(with_experts, weights, spot, change)
        for strength, change in SMALL_SCALE_FAULTS.items():
            yield "scale wrong by 2", strength, number, partial(with_experts, weights, one, change)
        each = Place("one of each layer", every.layers, one.experts)
        for spot in (one, each):
            yield (
                "expert zeroed",
                spot.strength,
                number,
                partial(with_experts, weights, spot, torch.zeros_like),
            )
        for spot in spots[1:]:
            yield (
                "two experts swapped",
                spot.strength,
                number,
                partial(swapped, weights, spot.layers),
            )
        for spot in (layer, every):
            yield (
                "attention head zeroed",
                spot.strength,
                number,
                partial(without_head, weights, shape, spot.layers, number % shape.heads),
            )
        for part in (0.05, 0.2, 0.5):
            yield (
                "a shard from another revision",
                f"one layer, {part:g} deviations off",
                number,
                partial(with_experts, weights, layer, another_revision(part)),
            )


def main() -> None:
    source, out = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    wanted = sys.argv[3:]
    shape = Shape.of(source)
    weights = from_checkpoint(load_file(source / WEIGHTS), shape)
    for kind, strength, number, damaged in cases(weights, shape):
        name = f"{kind}, {strength}, {number}".replace(" ", "-").replace(",", "")
        if wanted and name not in wanted:
            continue
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            if file.name != WEIGHTS:
                shutil.copyfile(file, folder / file.name)
        save_file(to_checkpoint(damaged()), folder / WEIGHTS, metadata={"format": "pt"})
        case = {"case": name, "kind": kind, "strength": strength, "placement": number}
        print(json.dumps(case), flush=True)


if __name__ == "__main__":
    main()
