"""How a build of SGLang reads a checkpoint: its own config classes, against what the weights are.

A patched tree proves little until the build that will serve says what it takes this very checkpoint
for.  SGLang 0.5.13.post1 takes the NVFP4 experts of nvidia/DeepSeek-V4-Flash-NVFP4 for MXFP4, warns
of names that it does not find, starts, and talks garbage.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from bringup import artifact, paths
from bringup.artifact import Document
from bringup.engine import upstream, worker

SCHEMA = "reading/1"

PLAIN = ("bf16", "fp16", "fp32")
"""Formats of weights that no quantization touches."""

CLASSES = ("experts", "dense_mlp", "attention")
"""Module classes in the order of their weight; the first that a checkpoint has is compared."""

NEEDS_CODE = "trust_remote_code"
"""What Transformers' errors name when a checkpoint brings code of its own."""

Verdict = Literal["agrees", "misreads", "cannot-load", "unknown"]


def read(metadata: Document, format_: Document, engine: Document, *, log: Path) -> Document:
    """Return how ``engine`` reads a checkpoint.

    Args:
        metadata: the checkpoint's metadata document; its small files are read, no weights.
        format_: the checkpoint's format document, which says what the weights are.
        engine: an engine document.
        log: the stage's log; what the engine prints goes beside it.

    Raises:
        worker.EngineSilentError: the engine's process gave no answer.
    """
    fields = {
        "checkpoint": metadata["checkpoint"],
        "engine": engine["engine"],
        "verdict": "unknown",
        "module_class": None,
        "quantization": None,
        "experts": None,
        "hybrid": None,
        "architecture_known": None,
        "kv_cache_dtype": None,
        "message": None,
        "fixed_by": None,
    }
    if cause := artifact.stopping(metadata, format_, engine):
        return artifact.skipped(SCHEMA, cause, **fields)
    answer = worker.ask(
        engine,
        {
            "command": "read",
            "folder": str(paths.actual(metadata["configs"])),
            "trust_remote_code": bool(metadata["remote_code"]),
        },
        log=log.with_name(f"{log.stem}.engine.log"),
    )
    if not answer["ok"]:
        cause = artifact.reason(
            "engine-not-importable",
            f"SGLang {engine['version']} could not be asked: {answer['error']}",
            evidence=answer["output"],
        )
        return artifact.document(SCHEMA, "failed", cause, **fields)
    return artifact.document(SCHEMA, **{**fields, **judged(answer, format_, engine)})


def judged(answer: Mapping[str, Any], format_: Document, engine: Document) -> Document:
    """Return the reading's fields: the build's ``answer`` against what the weights are."""
    build = f"SGLang {engine['version']}"
    class_ = next((each for each in CLASSES if each in format_["classes"]), None)
    actual = format_["classes"][class_]["format"] if class_ else "unknown"
    declared = ((format_["declared"] or {}).get(class_) or {}).get("format")
    method = answer["quantization"] or (answer["declared"] or {}).get("quant_method")
    read_as = meaning(method, answer, declared=declared, actual=actual)
    fields: Document = {
        "module_class": class_,
        "quantization": method,
        "experts": read_as if class_ == "experts" else None,
        "hybrid": _hybrid(answer),
        "architecture_known": answer["architecture_known"],
        "kv_cache_dtype": _kv_cache(answer),
        "fixed_by": None,
    }
    if error := answer["error"]:
        verdict, message = _refusal(error, answer, method, engine)
        return {**fields, "verdict": verdict, "message": f"{build} {message}"}
    words = (class_ or "weights").replace("_", " ")
    taken = f"reads the {words} as {read_as} (quantization: {method or 'none'})"
    if "unknown" in (read_as, actual):
        return {**fields, "verdict": "unknown", "message": f"{build} {taken}; they are {actual}"}
    if _same(read_as, actual):
        note = "" if answer["architecture_known"] else f"; {_no_class(format_)}"
        return {**fields, "verdict": "agrees", "message": f"{build} {taken}, as they are{note}"}
    fix = upstream.fix(format_["architecture"], read_as, actual, str(engine["version"]))
    fixed = f". Fixed by {fix}" if fix else ""
    message = f"{build} {taken}; they are {actual}{fixed}"
    return {**fields, "verdict": "misreads", "message": message, "fixed_by": fix}


def meaning(
    method: str | None, answer: Mapping[str, Any], *, declared: str | None, actual: str
) -> str:
    """Return the format that the build takes the weights for.

    Args:
        method: the quantization that it settled on.
        answer: what it found beside that (see `bringup.engine.inside.read`).
        declared: what the checkpoint's config says of them.
        actual: what they are; it tells only which spelling of a plain type is meant, and that
            modules which the config excludes were left alone.
    """
    config = answer["config"] or answer["declared"] or {}
    found = {
        "nvfp4_moe": bool(answer["nvfp4_moe"]),
        "fp4_experts": answer["fp4_experts"],
        "blocks": bool(config.get("weight_block_size")),
    }
    reads = next(
        (
            row["reads"]
            for row in _table()["rows"]
            if row["method"] == method and ("having" not in row or found[row["having"]])
        ),
        "unknown",
    )
    if actual in PLAIN and (reads == "plain" or declared == actual):
        return actual
    if reads == "plain":
        return {"float16": "fp16", "float32": "fp32"}.get(answer["dtype"], "bf16")
    return (declared or "unknown") if reads == "declared" else str(reads)


def _refusal(
    error: Mapping[str, str], answer: Mapping[str, Any], method: str | None, engine: Document
) -> tuple[Verdict, str]:
    """Tell a build that can't load the checkpoint from one that only lacks a GPU to say so."""
    first = error["message"].strip().splitlines()[0] if error["message"].strip() else ""
    accepted = engine["choices"].get("quantization", [])
    if not answer["cuda"] and method in accepted and method not in answer["registered"]:
        return (
            "unknown",
            f"knows {method}, but only where it finds CUDA: read it again on a machine with a GPU",
        )
    if NEEDS_CODE in error["message"]:
        return (
            "cannot-load",
            "needs code that comes with the checkpoint: set trust-remote-code if you trust it",
        )
    return "cannot-load", f"refuses its metadata: {error['type']}: {first}"


def _same(read_as: str, actual: str) -> bool:
    return read_as == actual or any(
        row["read"] == read_as and row["is"] == actual for row in _table()["same"]
    )


def _no_class(format_: Document) -> str:
    return f"it has no model class {format_['architecture']} of its own"


def _hybrid(answer: Mapping[str, Any]) -> Document | None:
    """Return what the build found to be of another format than its method says, or None."""
    if found := answer["nvfp4_moe"]:
        return {"experts": "nvfp4", "group_size": found.get("group_size")}
    return {"experts": "mxfp4", "group_size": None} if answer["fp4_experts"] else None


def _kv_cache(answer: Mapping[str, Any]) -> str | None:
    """Return the KV cache's type as the build's quantization config has it, or None."""
    config = answer["config"] or {}
    scheme = config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        bits, kind = scheme.get("num_bits"), scheme.get("type")
        return f"fp{bits}" if kind == "float" else f"{kind}{bits}"
    return str(scheme).lower() if scheme and scheme != "auto" else None


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    table: dict[str, list[dict[str, Any]]] = yaml.safe_load(
        Path(__file__).with_name("methods.yaml").read_text(encoding="utf-8")
    )
    return table
