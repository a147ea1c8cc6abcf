"""``server.json``: one boot of one server, as it was asked for and as it turned out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bringup.artifact import Document, Status, document
from bringup.evidence.diagnosis import failure
from bringup.evidence.observed import Observed, number, observe
from bringup.evidence.rules import table
from bringup.evidence.verdicts import MODULES, UNDECIDED, backend
from bringup.redact import redacted

SCHEMA = "server/1"


def server_document(
    *,
    experiment: str,
    plan: Document,
    boot: str,
    argv: Sequence[str],
    gpus: Sequence[str],
    load_s: float,
    server_info: Mapping[str, Any],
    model_info: Mapping[str, Any],
    log: Path,
    live: Mapping[str, Any],
    imports: Document,
    environment: Mapping[str, str] | None = None,
    versions: Mapping[str, str | None] | None = None,
    packages: Mapping[str, str] | None = None,
) -> Document:
    """Return ``server.json`` of a server that became ready.

    Its status is ``failed`` where the log says that weights are missing, although the server
    started, or that it died meanwhile.

    Args:
        experiment: name of the experiment.
        plan: its ``plan.json``; ``flags`` say what was asked for.
        boot: id of this life of the server.
        argv: the command line as run.
        gpus: UUIDs of the GPUs that it was given.
        load_s: seconds from its start until it was ready.
        server_info: ``/server_info``; any field may be missing.
        model_info: ``/model_info``; likewise.
        log: its log up to now.
        live: what changes by itself, to be kept for the record.
        imports: the package that its process imports.
        environment: variables of its process; those of the plan, if left out.
        versions: versions known from elsewhere (the driver's).
        packages: all that is installed beside it, with versions; those that count are kept.

    Raises:
        OSError: the log cannot be read.
    """
    observed = observe(log)
    reason = failure(log, ready=True)
    asked = {row["flag"]: row["value"] for row in plan.get("flags", [])}
    status: Status = "ok" if reason is None else "failed"
    return document(
        SCHEMA,
        status,
        reason,
        experiment=experiment,
        boot=boot,
        argv=redacted(list(argv)),
        gpus=list(gpus),
        **as_it_turned_out(asked, server_info, model_info, observed),
        load_s=round(load_s, 1),
        environment=_of_consequence(plan.get("env", {}) if environment is None else environment),
        live=dict(live),
        imports=dict(imports),
        versions=_versions(server_info.get("version"), versions, packages),
    )


def failed_document(
    *,
    experiment: str,
    plan: Document,
    boot: str | None,
    argv: Sequence[str],
    gpus: Sequence[str],
    reason: Document,
    log: Path,
    environment: Mapping[str, str] | None = None,
    versions: Mapping[str, str | None] | None = None,
    packages: Mapping[str, str] | None = None,
) -> Document:
    """Return ``server.json`` of a server that did not become ready; ``reason`` is of `diagnose`.

    Raises:
        OSError: the log cannot be read.
    """
    asked = {row["flag"]: row["value"] for row in plan.get("flags", [])}
    return document(
        SCHEMA,
        "failed",
        reason,
        experiment=experiment,
        boot=boot,
        argv=redacted(list(argv)),
        gpus=list(gpus),
        **as_it_turned_out(asked, {}, {}, observe(log)),
        load_s=None,
        environment=_of_consequence(plan.get("env", {}) if environment is None else environment),
        live={},
        imports=None,
        versions=_versions(None, versions, packages),
    )


def asked_of(server_info: Mapping[str, Any], observed: Observed) -> dict[str, Any]:
    """Return what was asked of a server that we did not start, as far as it can be told.

    ``launch_command`` of ``/server_info`` (from 0.5.21 on) is the command line.  Older servers only
    echo their arguments into the log after filling in defaults, so a backend that they chose
    themselves can stand there as if it had been asked for.
    """
    command = server_info.get("launch_command")
    if isinstance(command, str):
        return _flags_of(shlex.split(command))
    asked = {}
    for row in table("resolved_fields")["fields"]:
        values = (observed.argument(name) for name in row["names"])
        asked[row["flag"]] = next((value for value in values if value is not None), None)
    return {flag: value for flag, value in asked.items() if value is not None}


def resolved_of(server_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the server says it settled on, by flag; null where it does not say.

    The scheduler's own view (``internal_states``) is preferred to the front end's.
    """
    states = server_info.get("internal_states")
    scheduler = states[0] if isinstance(states, list) and states else {}
    views = [view for view in (scheduler, server_info) if isinstance(view, Mapping)]
    return {
        row["flag"]: next(
            (view[name] for name in row["names"] for view in views if view.get(name) is not None),
            None,
        )
        for row in table("resolved_fields")["fields"]
    }


def backends(
    asked: Mapping[str, Any], resolved: Mapping[str, Any], observed: Observed
) -> dict[str, Document]:
    """Return asked, resolved, used and verdict of each module class, as the log proves them."""
    found = {}
    for module in MODULES:
        proof = observed.used(module)
        found[module] = backend(
            module, asked, resolved, proof.used if proof else None, [proof.line] if proof else []
        )
    return found


def as_it_turned_out(
    asked: Mapping[str, Any],
    server_info: Mapping[str, Any],
    model_info: Mapping[str, Any],
    observed: Observed,
) -> dict[str, Any]:
    """Return the part of the document that the server and its log decide."""
    resolved = resolved_of(server_info)
    usage = _memory_usage(server_info)
    return {
        "model": {
            "architectures": model_info.get("architectures"),
            "type": model_info.get("model_type"),
            "quantization": observed.values.get("quantization"),
            "kv_cache_dtype": observed.values.get("kv_dtype"),
        },
        "asked": dict(asked),
        "resolved": resolved,
        "differences": _differences(asked, resolved, server_info, observed),
        "proof": [proof.line for proof in observed.proofs],
        "backends": backends(asked, resolved, observed),
        "graph_capture_s": _graph_capture_s(server_info, observed),
        "memory": {
            "weights_gib": _first(usage.get("weight"), observed.values.get("weights_gib")),
            "kv_gib": _first(usage.get("kvcache"), _kv_gib(observed)),
            "graphs_gib": _first(_total(usage.get("graph")), observed.values.get("graphs_gib")),
            "available_gib": number(observed.values.get("available_gib")),
        },
        "kv_tokens": _whole(
            _first(
                server_info.get("max_total_num_tokens"),
                usage.get("token_capacity"),
                observed.values.get("kv_tokens"),
            )
        ),
        "graph_sizes": [
            int(size) for size in observed.values.get("graph_sizes", "").split(",") if size.strip()
        ],
        "warnings": observed.warnings,
    }


def _differences(
    asked: Mapping[str, Any],
    resolved: Mapping[str, Any],
    server_info: Mapping[str, Any],
    observed: Observed,
) -> list[Document]:
    """Return where the server settled on something else, with the line that explains it.

    ``why`` is null where no line does: then the difference is a finding of its own.  What the
    server does not say is no difference, nor is a value that is filled in at launch (``{port}``).
    """
    aliases = table("resolved_fields")["aliases"]
    names = {row["flag"]: list(row["names"]) for row in table("resolved_fields")["fields"]}
    differences = []
    for given, value in asked.items():
        flag = aliases.get(given, given)
        known = names.get(flag, [flag.replace("-", "_")])
        settled = resolved.get(flag) if flag in names else server_info.get(known[0])
        if (
            not isinstance(settled, str | int | float)
            or value in UNDECIDED
            or "{" in str(value)
            or _same(value, settled)
        ):
            continue
        said = (observed.explains(name) for name in known)
        differences.append(
            {
                "field": flag,
                "asked": value,
                "resolved": settled,
                "why": next((line for line in said if line is not None), None),
            }
        )
    return differences


def _same(asked: Any, resolved: Any) -> bool:
    if asked == resolved or str(asked).lower() == str(resolved).lower():
        return True
    left, right = number(asked), number(resolved)
    return left is not None and left == right


def _flags_of(argv: Sequence[str]) -> dict[str, Any]:
    """Return the long flags of a command line with their values (true for a switch)."""
    aliases = table("resolved_fields")["aliases"]
    flags: dict[str, Any] = {}
    for place, word in enumerate(argv):
        if not word.startswith("--"):
            continue
        name, glued, value = word[2:].partition("=")
        following = argv[place + 1] if place + 1 < len(argv) else "--"
        flags[aliases.get(name, name)] = (
            value if glued else True if following.startswith("--") else following
        )
    return flags


def _versions(
    sglang: str | None,
    versions: Mapping[str, str | None] | None,
    packages: Mapping[str, str] | None,
) -> dict[str, str | None]:
    rules = table("resolved_fields")["packages"]
    counting = {
        name: version
        for name, version in sorted((packages or {}).items())
        if any(rule["pattern"].search(name) for rule in rules)
    }
    return {"sglang": sglang, **(versions or {}), **counting}


def _of_consequence(environment: Mapping[str, str]) -> dict[str, str]:
    rules = table("resolved_fields")["environment"]
    return redacted(
        {
            name: str(value)
            for name, value in sorted(environment.items())
            if any(rule["pattern"].search(name) for rule in rules)
        }
    )


def _memory_usage(server_info: Mapping[str, Any]) -> Mapping[str, Any]:
    states = server_info.get("internal_states")
    usage = states[0].get("memory_usage") if isinstance(states, list) and states else None
    return usage if isinstance(usage, Mapping) else {}


def _graph_capture_s(server_info: Mapping[str, Any], observed: Observed) -> float | None:
    startup = server_info.get("startup_time")
    reported = startup.get("cuda_graph") if isinstance(startup, Mapping) else None
    return _first(_total(reported), observed.values.get("graph_capture_s"))


def _kv_gib(observed: Observed) -> float | None:
    keys, values = number(observed.values.get("k_gib")), number(observed.values.get("v_gib"))
    if keys is not None and values is not None:
        return round(keys + values, 2)
    return number(observed.values.get("kv_gib"))


def _total(figure: Any) -> float | None:
    """Return a figure that older versions give as a number and newer ones by phase."""
    if isinstance(figure, Mapping):
        return sum(number(part) or 0.0 for part in figure.values())
    return number(figure)


def _first(*figures: Any) -> float | None:
    return next((found for found in map(number, figures) if found is not None), None)


def _whole(figure: float | None) -> int | None:
    return None if figure is None else int(figure)
