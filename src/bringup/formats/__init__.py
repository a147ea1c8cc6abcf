"""In which format a checkpoint's weights are: what its files declare, what its tensors show.

Metadata is a claim, tensor headers are the fact: ``quant_method`` says fp8 in both checkpoints of
DeepSeek-V4-Flash, of which one has NVFP4 experts and the other MXFP4.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from bringup import artifact, checkpoint, paths
from bringup.artifact import Document
from bringup.checkpoint import UnusableError
from bringup.formats import config as configs
from bringup.formats import declared as declarations
from bringup.formats import observed as observations
from bringup.formats import verdict
from bringup.formats.modules import expected

__all__ = ["describe", "detect"]

SCHEMA = "format/1"


def detect(metadata: Document) -> Document:
    """Tell the format of every module class of a checkpoint.

    Depends on nothing but ``metadata`` and the cached small files that it names.

    Returns:
        The document ``format/1``.  ``verdict`` says whether files and tensors agree; a ``conflict``
        is a result (status ``ok``), and the plan decides what it stops.

    Raises:
        UnreachableError: the cached files are gone; metadata must be read again.
    """
    fields = _nothing(metadata)
    if metadata["status"] in artifact.STOPS:
        return artifact.skipped(SCHEMA, metadata, **fields)
    try:
        return artifact.document(SCHEMA, **{**fields, **_detected(metadata)})
    except UnusableError as error:
        return artifact.document(
            SCHEMA, "failed", artifact.reason("checkpoint", str(error)), **fields
        )


def describe(path_or_repo: str, revision: str | None = None) -> Document:
    """Tell the format of a folder or a hub repository that no config names.

    Raises:
        UnusableError: it is no checkpoint, or a damaged one.
        UnreachableError: it can't be read now.
    """
    local = Path(path_or_repo).expanduser()
    if checkpoint.is_path(path_or_repo):
        entry = {"path": str(local)}
    else:
        entry = {"repo": path_or_repo, "revision": revision or "main"}
    found = checkpoint.metadata(entry, name=local.name or path_or_repo)
    document = found if found["status"] == "failed" else detect(found)
    if document["status"] == "failed":
        raise UnusableError(f"{path_or_repo}: {document['reason']['message']}")
    return document


def _nothing(metadata: Document) -> dict[str, Any]:
    return {
        "checkpoint": metadata["checkpoint"],
        "source": metadata["source"],
        "architecture": None,
        "model": None,
        "method": None,
        "declared": None,
        "observed": None,
        "verdict": None,
        "contradictions": [],
        "notes": metadata["notes"],
        "classes": {},
        "kv_cache": None,
        "weights_bytes": metadata["weights_bytes"],
        "json_hashes": metadata["json_hashes"],
    }


def _detected(metadata: Document) -> dict[str, Any]:
    files = _small_files(metadata)
    config = files.get(configs.CONFIG, {})
    architecture = configs.architecture(config)
    model = configs.numbers(config)
    layers = configs.layers_of(config, model)
    declared = declarations.read(files, metadata["kind"])
    observed = _observed(metadata, model["layers"])
    if observed is None:
        modules = expected(architecture, model, layers)
    else:
        modules = [(each.module, each.parameters) for each in observed.weights if each.matrix]
    shown = verdict.observed_classes(observed) if observed else None
    said = verdict.declared_classes(declared, modules)
    against = [
        *verdict.contradictions(declared, observed),
        *declarations.disagreements(declared.statements, (module for module, _ in modules)),
    ]
    doubts = verdict.doubts(declared, [module for module, _ in modules], observed)
    return {
        "architecture": architecture,
        "model": {
            **model,
            **_layer_counts(layers),
            **configs.compressed_layers(config, len(layers)),
        },
        "method": declared.method,
        "declared": said,
        "observed": shown,
        "verdict": "conflict" if against else "metadata-incomplete" if doubts else "consistent",
        "contradictions": against,
        "notes": [*metadata["notes"], *doubts, *declarations.oddities(files)],
        "classes": verdict.classes(said, shown),
        "kv_cache": declared.kv_cache(),
    }


def _small_files(metadata: Document) -> dict[str, dict[str, Any]]:
    folder = paths.actual(metadata["configs"])
    return {
        name: json.loads(_cached(folder / name))
        for name in metadata["json_hashes"]
        if not name.endswith(".index.json")
    }


def _observed(metadata: Document, layers: int | None) -> observations.Observed | None:
    if metadata["headers"] is None:
        return None
    summary = json.loads(_cached(paths.actual(metadata["headers"])))
    return observations.observe(checkpoint.groups_of(summary), layers)


def _cached(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise checkpoint.UnreachableError(
            f"{paths.portable(path)} is gone from the cache: remove this checkpoint's "
            "metadata.json and run again"
        ) from None


def _layer_counts(layers: list[configs.Layer]) -> dict[str, int]:
    mixers = Counter(layer.mixer for layer in layers)
    return {
        "attention_layers": mixers["attention"],
        "linear_attention_layers": mixers["linear_attention"],
        "mamba_layers": mixers["mamba"],
        "moe_layers": sum(layer.mlp == "moe" for layer in layers),
    }
