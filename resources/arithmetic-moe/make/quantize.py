"""Make the quantized forms of the bf16 checkpoint.

``python quantize.py BF16_DIR OUT_DIR [--forms fp8 nvfp4 …] [--evaluate]`` writes
``OUT_DIR/<form>/`` for each form, then compares every file with ``hashes.json``.  Needs
``torch`` and ``safetensors`` (and ``tokenizers`` for ``--evaluate``); no GPU.

Exit code: 0 the files are the known ones, or come from other weights than the known ones; 1 a
file differs from the known one; 2 bad input.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import formats
import torch
from model import ATTENTION, EXPERTS, Shape, from_checkpoint, layer_name
from safetensors.torch import load_file, save_file
from torch import Tensor

HERE = Path(__file__).resolve().parent
HASHES = HERE.parent / "hashes.json"
CALIBRATION = HERE / "calibration.json"
COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
WEIGHTS = "model.safetensors"

Json = dict[str, Any]
Tensors = dict[str, Tensor]


class InputError(Exception):
    """One line: what is wrong, where, and what would be right."""


@dataclass(frozen=True)
class Source:
    """The bf16 checkpoint that the forms are made of."""

    folder: Path
    shape: Shape
    config: Json
    tensors: Tensors
    sha256: str

    @classmethod
    def of(cls, folder: Path) -> Source:
        for name in ("config.json", WEIGHTS, *COPIED):
            if not (folder / name).is_file():
                raise InputError(f"{folder}: no {name}; give the folder of the bf16 checkpoint")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if "quantization_config" in config:
            raise InputError(f"{folder}/config.json: already quantized; give the bf16 checkpoint")
        tensors = load_file(folder / WEIGHTS)
        return cls(folder, Shape.of(folder), config, tensors, sha256(folder / WEIGHTS))

    @property
    def layers(self) -> range:
        return range(self.shape.layers)

    def matrix(self, module: str) -> Tensor:
        """Return the weights of ``module`` in float32."""
        return self.tensors[f"{module}.weight"].float()

    def attention(self, layer: int) -> dict[str, str]:
        """Return the names of a layer's attention projections by kind."""
        return {kind: f"{layer_name(layer)}.self_attn.{kind}" for kind in ATTENTION}

    def experts(self, layer: int) -> list[dict[str, str]]:
        """Return, for each expert of a layer, the names of its matrices by kind."""
        names = [f"{layer_name(layer)}.mlp.experts.{each}" for each in range(self.shape.experts)]
        return [{kind: f"{name}.{kind}" for kind in EXPERTS} for name in names]

    def expert_matrices(self) -> list[str]:
        """Return the names of all matrices of all experts."""
        experts = (each for layer in self.layers for each in self.experts(layer))
        return [module for expert in experts for module in expert.values()]

    def without(self, modules: Iterable[str]) -> Tensors:
        """Return the tensors as they are, but for the weights of ``modules``."""
        left_out = {f"{module}.weight" for module in modules}
        return {name: each for name, each in self.tensors.items() if name not in left_out}

    def largest_inputs(self) -> dict[str, float]:
        """Return the largest input of each linear layer, as measured by ``calibrate.py``."""
        calibration = json.loads(CALIBRATION.read_text(encoding="utf-8"))
        if calibration["weights_sha256"] != self.sha256:
            raise InputError(
                f"{CALIBRATION.name}: measured on other weights than {self.folder}/{WEIGHTS}; "
                f"run calibrate.py {self.folder} first"
            )
        found: dict[str, float] = calibration["largest_inputs"]
        return found


@dataclass(frozen=True)
class Form:
    """What a form's folder holds beside the files copied from the source."""

    tensors: Tensors
    quantization: Json | None
    """``quantization_config`` of ``config.json``."""
    hf_quant_config: Json | None = None
    """``hf_quant_config.json``, ModelOpt's own file."""


# Each form.  A form's quantized tensors are named by the layout that its loader expects.

MODELOPT = {"name": "modelopt", "version": "0.41.0"}


def unquantized_modules(shape: Shape) -> list[str]:
    """Return what stays bf16 in every form."""
    routers = [f"{layer_name(layer)}.mlp.gate" for layer in range(shape.layers)]
    return ["lm_head", "model.embed_tokens", *routers]


def fp8(source: Source) -> Form:
    """FP8 in blocks of 128×128, attention and experts, inputs scaled at run time."""
    attention = [name for layer in source.layers for name in source.attention(layer).values()]
    modules = attention + source.expert_matrices()
    tensors = source.without(modules)
    for module in modules:
        values, scales = formats.fp8_block_encoded(source.matrix(module))
        tensors |= {f"{module}.weight": values, f"{module}.weight_scale_inv": scales}
    quantization = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [formats.FP8_BLOCK, formats.FP8_BLOCK],
        "modules_to_not_convert": unquantized_modules(source.shape),
    }
    return Form(tensors, quantization)


def nvfp4_experts(source: Source) -> Tensors:
    """Return the NVFP4 tensors of all experts.

    The gate and up matrices of an expert share one float32 scale: kernels fuse the two and keep
    only the first one's.
    """
    largest_inputs = source.largest_inputs()
    tensors: Tensors = {}
    for expert in (each for layer in source.layers for each in source.experts(layer)):
        matrices = {kind: source.matrix(module) for kind, module in expert.items()}
        fused = formats.nvfp4_matrix_scale(matrices["gate_proj"], matrices["up_proj"])
        own = formats.nvfp4_matrix_scale(matrices["down_proj"])
        for kind, module in expert.items():
            matrix_scale = own if kind == "down_proj" else fused
            codes, scales = formats.nvfp4_encoded(matrices[kind], matrix_scale)
            top = torch.tensor(largest_inputs[module])
            tensors |= {
                f"{module}.weight": formats.packed_pairs(codes),
                f"{module}.weight_scale": scales,
                f"{module}.weight_scale_2": matrix_scale.reshape(()).clone(),
                f"{module}.input_scale": top / (formats.E2M1_MAX * formats.E4M3_MAX),
            }
    return tensors


def nvfp4(source: Source) -> Form:
    """NVFP4 experts as ModelOpt exports them, declared in both of its places."""
    attention = [f"{layer_name(layer)}.self_attn*" for layer in source.layers]
    ignored = unquantized_modules(source.shape) + attention
    numbers = {
        "num_bits": 4,
        "type": "float",
        "group_size": formats.NVFP4_BLOCK,
        "dynamic": False,
    }
    group = {"input_activations": numbers, "weights": numbers, "targets": ["Linear"]}
    return Form(
        source.without(source.expert_matrices()) | nvfp4_experts(source),
        quantization={
            "config_groups": {"group_0": group},
            "ignore": ignored,
            "quant_algo": "NVFP4",
            "producer": MODELOPT,
            "quant_method": "modelopt",
        },
        hf_quant_config={
            "producer": MODELOPT,
            "quantization": {
                "quant_algo": "NVFP4",
                "kv_cache_quant_algo": None,
                "group_size": formats.NVFP4_BLOCK,
                "exclude_modules": ignored,
            },
        },
    )


def nvfp4_hq(source: Source) -> Form:
    """The nvfp4 form declared only in ``hf_quant_config.json``, as older exports are."""
    both = nvfp4(source)
    return Form(both.tensors, None, both.hf_quant_config)


def mixed(source: Source) -> Form:
    """ModelOpt's MIXED_PRECISION: NVFP4 experts, FP8 attention with one scale a tensor."""
    largest_inputs = source.largest_inputs()
    tensors: Tensors = {}
    layers: Json = {}
    for layer in source.layers:
        attention = source.attention(layer)
        matrices = {kind: source.matrix(module) for kind, module in attention.items()}
        fused = formats.fp8_tensor_scale(*(matrices[kind] for kind in ATTENTION[:3]))
        own = formats.fp8_tensor_scale(matrices["o_proj"])
        for kind, module in attention.items():
            scale = own if kind == "o_proj" else fused
            tensors |= {
                f"{module}.weight": formats.fp8_tensor_encoded(matrices[kind], scale),
                f"{module}.weight_scale": scale.clone(),
                f"{module}.input_scale": torch.tensor(largest_inputs[module]) / formats.E4M3_MAX,
            }
            layers[module] = {"quant_algo": "FP8"}
        for expert in source.experts(layer):
            for module in expert.values():
                layers[module] = {"quant_algo": "NVFP4", "group_size": formats.NVFP4_BLOCK}
    ignored = unquantized_modules(source.shape)
    return Form(
        source.without(layers) | nvfp4_experts(source) | tensors,
        quantization={
            "quant_algo": "MIXED_PRECISION",
            "quant_method": "modelopt",
            "producer": MODELOPT,
            "ignore": ignored,
            "quantized_layers": layers,
        },
        hf_quant_config={
            "producer": MODELOPT,
            "quantization": {
                "quant_algo": "MIXED_PRECISION",
                "kv_cache_quant_algo": None,
                "exclude_modules": ignored,
                "quantized_layers": layers,
            },
        },
    )


def compressed_tensors(layout: str, numbers: Json) -> Json:
    """Return the ``quantization_config`` of compressed-tensors for weights of experts only."""
    weights = {
        "num_bits": 4,
        **numbers,
        "observer": "minmax",
        "observer_kwargs": {},
        "block_structure": None,
    }
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": layout,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "ignore": ["lm_head", "re:.*self_attn.*", r"re:.*mlp\.gate$"],
        "config_groups": {"group_0": group},
        "version": "0.13.0",
    }


def int4(source: Source) -> Form:
    """Symmetric int4 in groups of 32, experts only (compressed-tensors ``pack-quantized``)."""
    modules = source.expert_matrices()
    tensors = source.without(modules)
    for module in modules:
        matrix = source.matrix(module)
        codes, scales = formats.int4_encoded(matrix)
        tensors |= {
            f"{module}.weight_packed": formats.packed_words(codes),
            f"{module}.weight_scale": scales,
            f"{module}.weight_shape": torch.tensor(matrix.shape),
        }
    numbers = {
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": formats.INT4_GROUP,
        "dynamic": False,
        "actorder": None,
    }
    return Form(tensors, compressed_tensors("pack-quantized", numbers))


def mxfp4(source: Source) -> Form:
    """MXFP4 experts (compressed-tensors ``mxfp4-pack-quantized``)."""
    modules = source.expert_matrices()
    tensors = source.without(modules)
    for module in modules:
        codes, scales = formats.mxfp4_encoded(source.matrix(module))
        tensors |= {
            f"{module}.weight_packed": formats.packed_pairs(codes),
            f"{module}.weight_scale": scales,
        }
    numbers = {
        "type": "float",
        "symmetric": True,
        "strategy": "group",
        "group_size": formats.MXFP4_BLOCK,
        "dynamic": False,
        "actorder": None,
        "scale_dtype": "torch.uint8",
    }
    return Form(tensors, compressed_tensors("mxfp4-pack-quantized", numbers))


FORMS: dict[str, Callable[[Source], Form]] = {
    form.__name__: form for form in (fp8, nvfp4, nvfp4_hq, mixed, int4, mxfp4)
}


# Files


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(form: Form, source: Source, folder: Path) -> None:
    """Write the checkpoint; its weights appear last, and whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        shutil.copyfile(source.folder / name, folder / name)
    declared = {"quantization_config": form.quantization} if form.quantization else {}
    write_json(folder / "config.json", source.config | declared)
    if form.hf_quant_config:
        write_json(folder / "hf_quant_config.json", form.hf_quant_config)
    draft = folder / f".{WEIGHTS}"
    save_file(form.tensors, draft, metadata={"format": "pt"})
    draft.chmod(0o644)
    draft.replace(folder / WEIGHTS)


def write_json(path: Path, content: Json) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def differences(form: str, folder: Path, known: Mapping[str, str]) -> Iterator[str]:
    """Yield one line for each file of ``folder`` that is not the known one."""
    for name, expected in known.items():
        found = sha256(folder / name)
        if found != expected:
            yield f"{form}/{name}: sha256 is {found}, {HASHES.name} has {expected}"


# Evaluation


def unpacked(tensors: Tensors) -> Tensors:
    """Return the tensors of a saved form with every weight decoded, as a bf16 checkpoint has."""
    plain = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight_packed" or (part == "weight" and tensor.dtype != torch.bfloat16):
            plain[f"{module}.weight"] = decoded(module, tensors)
        elif part == "weight":
            plain[name] = tensor
    return plain


def decoded(module: str, tensors: Tensors) -> Tensor:
    """Return the float32 weights of one quantized module, told by the tensors that it has."""
    part = {
        name.removeprefix(f"{module}."): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{module}.")
    }
    if "weight_shape" in part:
        codes = formats.unpacked_words(part["weight_packed"])
        return formats.int4_decoded(codes, part["weight_scale"])
    if "weight_packed" in part:
        codes = formats.unpacked_pairs(part["weight_packed"])
        return formats.mxfp4_decoded(codes, part["weight_scale"])
    if "weight_scale_2" in part:
        codes = formats.unpacked_pairs(part["weight"])
        return formats.nvfp4_decoded(codes, part["weight_scale"], part["weight_scale_2"])
    if "weight_scale_inv" in part:
        return formats.fp8_block_decoded(part["weight"], part["weight_scale_inv"])
    return part["weight"].float() * part["weight_scale"]


def evaluate(form: str, folder: Path, shape: Shape) -> None:
    """Print how many facts the saved weights answer right."""
    from answers import encoded, right
    from facts import facts

    asked = list(facts())
    weights = from_checkpoint(unpacked(load_file(folder / WEIGHTS)), shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ids, labels = (tensor.to(device) for tensor in encoded(asked, folder))
    on_device = {name: tensor.to(device) for name, tensor in weights.items()}
    count = right(on_device, shape, asked, ids, labels)
    print(f"{form}: {count.total()} of {len(asked)} facts right, {dict(count)}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", metavar="BF16_DIR", type=Path)
    parser.add_argument("out", metavar="OUT_DIR", type=Path)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), metavar="FORM")
    parser.add_argument("--evaluate", action="store_true", help="ask every fact of every form")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    known = json.loads(HASHES.read_text(encoding="utf-8"))
    try:
        source = Source.of(asked.source)
        for form in asked.forms:
            write(FORMS[form](source), source, asked.out / form)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if asked.evaluate:
        for form in asked.forms:
            evaluate(form, asked.out / form, source.shape)
    if source.sha256 != known["bf16"][WEIGHTS]:
        print(f"{source.folder}: not the known weights, so {HASHES.name} says nothing of the forms")
        return 0
    wrong = [
        line for form in asked.forms for line in differences(form, asked.out / form, known[form])
    ]
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"{', '.join(asked.forms)}: every file has the known hash")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
