"""``kernels.json``: which kernels ran, what they are, and what that proves."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from bringup.artifact import Document, Status, document, reason
from bringup.evidence.rules import table
from bringup.evidence.traces import Tally, Trace, read
from bringup.evidence.verdicts import MODULES, backend, deciding

SCHEMA = "kernels/1"

MOST_KERNELS = 60
"""Kernels listed, longest first; the rest is added up under one name."""

LONGEST_NAME = 240
"""Characters kept of a kernel's name (C++ templates go on for thousands)."""

STEPS = 20
"""Forward passes that a profile holds: enough for shares, small enough to write in seconds."""

STEPS_ON_CPU = 5
"""The same on a CPU, where Python frames are recorded: writing 20 took 10 s of a tiny model."""

SHARE_SHOWN = 0.05
"""Modules with less of the time than this are not in the sentence."""

IDLE = 0.5
"""A GPU that is busy for less than this part of the time waits for the CPU."""

UNEXPLAINED = {"module": "unexplained", "role": "help", "family": None, "unit": None}

Rule = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, or on a CPU an operator, with what its name tells."""

    name: str
    tally: Tally
    rule: Rule

    @property
    def module(self) -> str:
        """What it works for; ``unexplained`` if no rule knows its name."""
        return str(self.rule["module"])

    @property
    def used(self) -> str | None:
        """The backend that it belongs to, else its family; None for a kernel of SGLang's own.

        Those serve many backends, so that they neither keep a promise nor break one.
        """
        if backend := self.rule.get("backend"):
            return str(backend)
        family = self.rule.get("family")
        return None if family in (None, "custom") else str(family)


def profile_request(output_dir: str, *, on_gpu: bool) -> Document:
    """Return the body of a POST to ``/start_profile`` that records a few forward passes.

    Every rank writes a trace of its own into ``output_dir``.  Python frames are most of a trace, so
    they are recorded only where they are needed: on a CPU an operator's name does not tell what it
    works for, on a GPU a kernel's does.
    """
    return {
        "output_dir": output_dir,
        "num_steps": STEPS if on_gpu else STEPS_ON_CPU,
        "activities": ["CPU", "GPU"] if on_gpu else ["CPU"],
        "with_stack": not on_gpu,
        "record_shapes": False,
    }


def kernels_document(
    traces: Sequence[Path],
    server: Document,
    *,
    experiment: str,
    boot: str | None,
    concurrency: int | None = None,
) -> Document:
    """Return ``kernels.json`` of the traces of one server's ranks.

    Args:
        traces: the trace files, one a rank.
        server: its ``server.json``; ``asked``, ``resolved`` and what its log proved count.
        experiment: name of the experiment.
        boot: id of the server's life that the traces are of.
        concurrency: requests that were being decoded.

    Raises:
        OSError: a trace cannot be read.
    """
    whole = Trace()
    for path in traces:
        whole.add(read(path, _frame))
    found = classified(whole)
    backends = {module: _backend(module, server, found) for module in MODULES}
    why = None if found else _nothing(whole)
    status: Status = "ok" if why is None else "failed"
    return document(
        SCHEMA,
        status,
        why,
        experiment=experiment,
        boot=boot,
        concurrency=concurrency,
        source="gpu-kernels" if whole.kernels else "cpu-operators",
        devices=whole.devices,
        traces=whole.files,
        steps=whole.steps,
        time_us=round(_time(found), 1),
        busy_share=_busy(whole),
        copies_us=round(sum(tally.us for tally in whole.copies.values()), 1),
        modules=_by_module(found),
        unexplained_share=_share(_time(k for k in found if k.module == "unexplained"), found),
        kernels=_listed(found),
        backends=backends,
        sentence=sentence(found, _busy(whole)),
        notes=[*_notes(whole), *whole.defects],
    )


def classified(trace: Trace) -> list[Kernel]:
    """Return the kernels of a trace, longest time first: of the GPU, else the CPU's operators."""
    if trace.kernels:
        found = [Kernel(name, tally, _gpu_kernel(name)) for name, tally in trace.kernels.items()]
    else:
        found = [
            Kernel(name, tally, _operator(name, module))
            for (name, module), tally in trace.operators.items()
        ]
    return sorted(found, key=lambda kernel: (-kernel.tally.us, kernel.name, kernel.module))


@lru_cache(maxsize=4096)
def _rule(kind: str, name: str) -> Rule:
    rules = table("kernels")[kind]
    return next((rule for rule in rules if rule["pattern"].search(name)), UNEXPLAINED)


def _gpu_kernel(name: str) -> Rule:
    rule = _rule("kernels", name)
    return rule if rule is not UNEXPLAINED else _named().get(_bare(name), UNEXPLAINED)


@cache
def _named() -> dict[str, Rule]:
    """Return SGLang's own kernels by their exact name."""
    return {
        name: {"module": module, "role": "help", "family": family, "unit": None}
        for module, families in table("sglang_kernels").items()
        for family, names in families.items()
        for name in names
    }


def _bare(name: str) -> str:
    """Return a kernel's name without result, namespaces, template and other arguments."""
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", plain, maxsplit=1)[0].rpartition("::")[2].strip()


def _operator(name: str, module: str | None) -> Rule:
    """Return the rule of an operator; the Python frame around it knows better what it works for."""
    rule = _rule("operators", name)
    return rule if module is None else {**rule, "module": module}


def _frame(name: str) -> str | None:
    """Return the module that a Python frame works for."""
    rule = _rule("frames", name)
    return None if rule is UNEXPLAINED else str(rule["module"])


def _backend(module: str, server: Document, found: Sequence[Kernel]) -> Document:
    """Return asked, resolved, used and verdict of a module class.

    The kernels decide; a line of the log counts where the trace shows no matrix product of the
    module.  Used is what took most of that product's time, in the number formats that the deciding
    flag speaks for.
    """
    asked, resolved = server.get("asked", {}), server.get("resolved", {})
    formats = deciding(module, asked, resolved)["formats"]
    products = [k for k in found if k.module == module and k.rule["role"] == "gemm"]
    meant = [k for k in products if formats is None or k.rule.get("format") in (*formats, None)]
    used = _most(meant or products)
    if used is None:
        return dict(server["backends"][module])
    evidence = [_said(kernel, found) for kernel in products[:3]]
    return backend(module, asked, resolved, used, evidence)


def _most(kernels: Iterable[Kernel]) -> str | None:
    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kernel.used is not None:
            times[kernel.used] += kernel.tally.us
    return max(times, key=lambda name: times[name]) if times else None


def _said(kernel: Kernel, found: Sequence[Kernel]) -> str:
    share = 100 * (_share(kernel.tally.us, found) or 0)
    return f"{share:.1f} % in {kernel.tally.launches} × {kernel.name[:LONGEST_NAME]}"


def _by_module(found: Sequence[Kernel]) -> list[Document]:
    """Return each module's share of the time, longest first.

    ``family`` and ``unit`` are those of its matrix products, which a backend is chosen for.
    """
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in found:
        groups[kernel.module].append(kernel)
    rows = []
    for module, kernels in groups.items():
        products = [kernel for kernel in kernels if kernel.rule["role"] == "gemm"] or kernels
        rows.append(
            {
                "module": module,
                "share": _share(_time(kernels), found),
                "us": round(_time(kernels), 1),
                "launches": sum(kernel.tally.launches for kernel in kernels),
                "family": next(iter(_parts(products, "family"))),
                "unit": next(iter(_parts(products, "unit"))),
                "families": _parts(kernels, "family"),
                "units": _parts(kernels, "unit"),
            }
        )
    return sorted(rows, key=lambda row: -float(row["us"]))


def _parts(kernels: Sequence[Kernel], key: str) -> dict[str, float | None]:
    """Return the shares of a module's time by family or unit, largest first."""
    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        times[str(kernel.rule.get(key) or "unknown")] += kernel.tally.us
    return {
        part: _share(us, kernels) for part, us in sorted(times.items(), key=lambda row: -row[1])
    }


def _listed(found: Sequence[Kernel]) -> list[Document]:
    rows = [
        {
            "name": kernel.name[:LONGEST_NAME],
            "us": round(kernel.tally.us, 1),
            "share": _share(kernel.tally.us, found),
            "launches": kernel.tally.launches,
            "module": kernel.module,
            "role": kernel.rule["role"],
            "family": kernel.rule.get("family"),
            "unit": kernel.rule.get("unit"),
            "format": kernel.rule.get("format"),
        }
        for kernel in found[:MOST_KERNELS]
    ]
    rest = found[MOST_KERNELS:]
    if rest:
        rows.append(
            {
                "name": f"{len(rest)} others",
                "us": round(_time(rest), 1),
                "share": _share(_time(rest), found),
                "launches": sum(kernel.tally.launches for kernel in rest),
                "module": None,
                "role": None,
                "family": None,
                "unit": None,
                "format": None,
            }
        )
    return rows


def sentence(found: Sequence[Kernel], busy: float | None) -> str:
    """Return where the time goes, in one sentence, and whether the experts are the bottleneck.

    Args:
        found: the kernels.
        busy: part of the time in which the GPU ran kernels, None where it is not known.
    """
    rows = [row for row in _by_module(found) if (row["share"] or 0) >= SHARE_SHOWN]
    if not rows:
        return ""
    shares = ", ".join(_phrase(row) for row in rows)
    largest = rows[0]["module"]
    if largest == "unexplained" or not any(row["module"] == "experts" for row in rows):
        return shares
    if largest != "experts":
        return f"{shares}: the experts are not the bottleneck"
    if busy is not None and busy < IDLE:
        return f"{shares}: the experts take most, but the GPU mostly waits"
    return f"{shares}: the experts are the bottleneck"


def _phrase(row: Document) -> str:
    spelled = table("kernels")["spelled"]
    told = [spelled.get(row[key]) for key in ("family", "unit")]
    inside = ", ".join(name for name in told if name)
    module = spelled.get(row["module"], row["module"])
    return f"{100 * row['share']:.0f} % {module}" + (f" ({inside})" if inside else "")


def _nothing(trace: Trace) -> Document:
    seen = "; ".join(trace.defects) or "no kernels and no operators in it"
    return reason(
        "no-kernels",
        f"the trace does not show what ran: {seen}",
        evidence=trace.defects[:20],
        hint="profile while requests are being decoded, and wait until the server has written it",
    )


def _notes(trace: Trace) -> list[str]:
    """Return what a reader must know of a trace before believing its shares."""
    other = [kind for kind in trace.steps if not kind.startswith("DECODE")]
    notes = []
    if other:
        notes.append(f"not only decode steps: {', '.join(sorted(other))} are in the shares too")
    if not trace.kernels and trace.operators:
        notes.append("operators of a CPU, with their own time")
        if not any(module for _, module in trace.operators):
            notes.append("no Python frames in the trace: matrix products cannot be told apart")
    busy = _busy(trace)
    if busy is not None and busy < IDLE:
        notes.append(
            f"the GPU ran kernels {100 * busy:.0f} % of the time under the profiler: "
            "launching them, not running them, sets the pace"
        )
    return notes


def _busy(trace: Trace) -> float | None:
    """Return the part of the time in which the GPUs ran kernels; None for a CPU."""
    us = sum(tally.us for tally in trace.kernels.values())
    return round(min(1.0, us / trace.window_us), 4) if trace.window_us > 0 else None


def _time(kernels: Iterable[Kernel]) -> float:
    return sum(kernel.tally.us for kernel in kernels)


def _share(us: float, found: Iterable[Kernel]) -> float | None:
    whole = _time(found)
    return round(us / whole, 4) if whole > 0 else None
