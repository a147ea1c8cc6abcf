"""Copies of quantized forms in which scales are wrong, for an engine's interpreter (torch).

    python benchmarks/on_gpu/corrupt.py resources/arithmetic-moe corrupted

Of one layer's down projections the scales are doubled: of all experts (``-layer``), of one
(``-expert``).
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

SCALES = {"fp8": "weight_scale_inv", "nvfp4": "weight_scale_2", "int4": "weight_scale"}
"""Form → the scale that is doubled; of NVFP4 the one of the whole tensor."""

EXPERTS = {"layer": r"\d+", "expert": "0"}
"""Strength → which of the layer's experts."""

LAYER, TIMES = 1, 2.0


def corrupt(form: Path, scale: str, experts: str, copy: Path) -> int:
    """Write ``form`` to ``copy`` with scales doubled; return how many."""
    shutil.copytree(form, copy, dirs_exist_ok=True)
    tensors = load_file(form / "model.safetensors")
    wrong = re.compile(rf"model\.layers\.{LAYER}\.mlp\.experts\.{experts}\.down_proj\.{scale}")
    found = [name for name in tensors if wrong.fullmatch(name)]
    for name in found:
        tensors[name] = (tensors[name].float() * TIMES).to(tensors[name].dtype)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return len(found)


def main() -> None:
    """Corrupt every form in every strength."""
    source, target = map(Path, sys.argv[1:])
    for form, scale in SCALES.items():
        for strength, experts in EXPERTS.items():
            copy = target / f"{form}-{strength}"
            count = corrupt(source / form, scale, experts, copy)
            if not count:
                raise SystemExit(f"{form}: no {scale} in layer {LAYER}: its layout has changed")
            print(f"{copy}: {count} scales × {TIMES:g}")


if __name__ == "__main__":
    main()
