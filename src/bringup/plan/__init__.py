"""The plan of an experiment: its whole command line with a reason for every flag, or why not.

A pure function of the documents before it and of the experiment's entry: the same input gives the
same bytes.  What can be known before a server is started is decided here, because a load that
ends in a refusal may take a quarter of an hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bringup import artifact, routing
from bringup.artifact import Document, reason
from bringup.hardware import SUPPORTED
from bringup.plan import drafting, fit, kv
from bringup.plan.backends import Decision, Target, decide
from bringup.plan.cost import cost, remarks, seconds
from bringup.plan.cost import table as cost_table
from bringup.plan.drafting import Draft
from bringup.plan.spread import Spread
from bringup.plan.sweep import depends_on_text, largest_concurrency
from bringup.plan.sweep import warnings as sweep_warnings
from bringup.routing import arguments, traps

__all__ = [
    "SCHEMA",
    "Draft",
    "cost",
    "cost_table",
    "depends_on_text",
    "foreign_environment",
    "gpus_needed",
    "largest_concurrency",
    "plan",
    "remarks",
    "screened",
    "seconds",
    "sweep_warnings",
]

SCHEMA = "plan/1"

STARTUP_MAX_S = 7200
"""How long a server may take to be ready where the config says nothing."""

DECODE_LOG_INTERVAL = 10
"""Decode steps between two throughput lines of the server's log (SGLang's default is 40)."""

NOT_FLAGS = frozenset({"startup_max_s"})
"""Keys of ``server:`` that are the workflow's own."""

WAIVERS = {
    "format-conflict": "accept_conflict",
    "misread-format": "accept_misreading",
    "known-bad-backend": "force",
    "unsupported-format": "force",
    "unsupported-format-on-cpu": "force",
    "does-not-fit": "force",
    "does-not-divide": "force",
    "unsupported-kv-cache": "force",
    "unsupported-quantization": "force",
}
"""The key of the experiment that lets an objection of a class pass, with a reason."""


def gpus_needed(experiment: Mapping[str, Any]) -> int:
    """Return how many GPUs the server of an experiment spreads over.

    It is 1 where the config says nothing, or nothing that makes sense: then the plan refuses it.
    """
    return Spread.of(_sound(_canonical(experiment["server"]))).gpus


def foreign_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``variables`` that change results: they belong into ``env:``."""
    return traps.environment(variables)


def screened(experiment: Mapping[str, Any], why: str) -> Document:
    """Return the plan of an experiment that the machine can't hold, known before anything is read.

    Args:
        experiment: the resolved entry.
        why: what ``hardware.screen`` said.
    """
    refusal = reason("screened-out", why, hint="run it on such a machine, or change `requires`")
    return artifact.document(SCHEMA, "refused", refusal, **_blank(experiment))


def plan(
    experiment: Mapping[str, Any],
    *,
    format: Document,
    reading: Document,
    engine: Document,
    hardware: Document,
    draft: Draft | None = None,
) -> Document:
    """Return ``plan.json``.

    Args:
        experiment: the resolved entry: ``name, checkpoint, engine, server, env`` and, where given,
            ``draft, force, accept_conflict, accept_misreading``.
        format: what the checkpoint is.
        reading: how this build reads it.
        engine: the build: its version, interpreter, flags and choices.
        hardware: the machine's fingerprint.
        draft: the draft checkpoint, where the experiment names one.

    Returns:
        A document of status ``ok``; ``refused`` with the first objection that no key of the
        experiment lets pass; ``skipped`` where an earlier document stops the experiment.
    """
    drafting = [draft.format] if draft else []
    stop = artifact.stopping(format, *drafting, engine)
    if stop:
        return artifact.skipped(SCHEMA, stop, **_blank(experiment))
    case = _Case(experiment, format, reading, engine, hardware, draft)
    objections = list(case.objections())
    standing = [each for each in objections if not case.waiver(each)]
    readings = [reading, draft.reading] if draft else [reading]
    if not standing and (stop := artifact.stopping(*readings)):
        return artifact.skipped(SCHEMA, stop, **_blank(experiment))
    waived = [case.waived(each) for each in objections if case.waiver(each)]
    others = [{"class": each["class"], "message": each["message"]} for each in standing[1:]]
    return artifact.document(
        SCHEMA,
        "refused" if standing else "ok",
        standing[0] if standing else None,
        **case.fields(warnings=[*others, *waived, *case.warnings()]),
    )


@dataclass(frozen=True)
class Flag:
    """One server argument, and who decided it."""

    name: str
    value: Any
    by: str
    """``user``, ``table`` or ``workflow``."""
    why: str

    def document(self) -> Document:
        return {"flag": self.name, "value": self.value, "by": self.by, "why": self.why}


@dataclass(frozen=True)
class _Case:
    """One experiment on one build, one checkpoint and one machine."""

    experiment: Mapping[str, Any]
    format: Document
    reading: Document
    engine: Document
    hardware: Document
    draft: Draft | None

    @property
    def on_cpu(self) -> bool:
        return bool(self.hardware["architecture"] == "cpu")

    @cached_property
    def server(self) -> dict[str, Any]:
        """The server arguments of the config."""
        given = self.experiment["server"].items()
        return {name: value for name, value in given if name not in NOT_FLAGS and value is not None}

    @cached_property
    def formats(self) -> dict[str, str]:
        """Format by module class."""
        return {name: each["format"] for name, each in sorted(self.format["classes"].items())}

    @cached_property
    def target(self) -> Target:
        return Target(
            self.formats,
            self.format["architecture"],
            self.hardware["architecture"],
            self.engine["version"],
            _pull_requests(self.engine["patches"]),
            kv.stored(self.format, _canonical(self.server), self.hardware["architecture"])
            if self.format["model"]
            else None,
        )

    @cached_property
    def decisions(self) -> list[Decision]:
        return decide(self.target, self.server, self.engine["choices"])

    @cached_property
    def flags(self) -> list[Flag]:
        """Every argument but the model, host and port, in the order of the command line."""
        chosen = [*self._users_flags(), *self._table_flags(), *self._draft_flags()]
        return [*chosen, *self._workflow_flags({arguments.canonical(each.name) for each in chosen})]

    def _users_flags(self) -> Iterator[Flag]:
        known, renamed = self.engine["flags"], self.engine["renamed"]
        for name, value in sorted(self.server.items()):
            if value == routing.AUTO and self._is_left_to_table(name):
                continue
            own, why = arguments.as_this_build_says(name, known, renamed)
            yield Flag(own, value, "user", f"config: {why}" if why else "config")

    def _is_left_to_table(self, name: str) -> bool:
        """Say whether ``auto`` for an argument is ours to answer, or unknown to the build."""
        questions = [each for each in self.decisions if each.document["flag"] == name]
        offered = self.engine["choices"].get(name)
        return any(each.flag or (offered and routing.AUTO not in offered) for each in questions)

    def _table_flags(self) -> Iterator[Flag]:
        known, renamed = self.engine["flags"], self.engine["renamed"]
        for decision in self.decisions:
            if decision.flag:
                name, value = decision.flag
                name, _ = arguments.as_this_build_says(name, known, renamed)
                why = (
                    f"row {decision.row}, {decision.document['known']}: {decision.document['why']}"
                )
                yield Flag(name, value, "table", why)

    def _draft_flags(self) -> Iterator[Flag]:
        if self.draft:
            if "speculative-algorithm" not in self.server:
                algorithm, why = self._algorithm()
                yield Flag("speculative-algorithm", algorithm, "table", why)
            yield Flag("speculative-draft-model-path", "{draft}", "workflow", "config: draft")

    def _algorithm(self) -> tuple[str, str]:
        """Return the speculative algorithm of the draft checkpoint, and why."""
        assert self.draft
        same = self.experiment["draft"] == self.experiment["checkpoint"]
        own_layers = same and bool(self.format["model"].get("draft_layers"))
        return self.draft.algorithm(own_layers=own_layers)

    def _workflow_flags(self, taken: set[str]) -> Iterator[Flag]:
        """Yield what the workflow adds, without what the user decided."""
        wanted: list[tuple[str, Any, str]] = []
        if self.on_cpu:
            wanted.append(("device", "cpu", "this machine has no GPU"))
            tokens = fit.tokens_on_cpu(self.format, self.hardware["ram_gib"])
            if tokens:
                why = "by default the KV cache takes most of a CPU host's RAM"
                wanted.append(("max-total-tokens", tokens, why))
        wanted += [
            (
                "decode-log-interval",
                DECODE_LOG_INTERVAL,
                "the server's own throughput is read there",
            ),
            ("enable-metrics", True, "the server's own counts are held against the client's"),
        ]
        for name, value, why in wanted:
            if name not in taken and (name in self.engine["flags"] or not self.engine["flags"]):
                yield Flag(name, value, "workflow", why)

    @cached_property
    def env(self) -> dict[str, str]:
        cpu = {"SGLANG_USE_CPU_ENGINE": "1"} if self.on_cpu else {}
        return {**cpu, **{name: str(value) for name, value in self.experiment["env"].items()}}

    @cached_property
    def spread(self) -> Spread:
        return Spread.of(_sound(_canonical(self.server)))

    @cached_property
    def canonical_flags(self) -> dict[str, Any]:
        return _canonical({flag.name: flag.value for flag in self.flags})

    @cached_property
    def memory(self) -> fit.Fit | None:
        """How the model fits on the GPUs; None on a CPU, whose RAM nothing divides."""
        if self.on_cpu or not self.format["model"]:
            return None
        smallest = min(gpu["memory_gib"] for gpu in self.hardware["gpus"])
        flags = _sound(self.canonical_flags)
        return fit.Fit(
            self.format,
            flags,
            smallest,
            self.engine["version"],
            self.target.gpu,
            self.draft.format if self.draft else None,
        )

    @cached_property
    def traps(self) -> list[dict[str, Any]]:
        situation = traps.Situation(
            gpu=self.target.gpu,
            version=self.target.version,
            model=self.target.model,
            experts=self.formats.get("experts"),
            method=self.format["method"],
            nvlink=_nvlink(self.hardware),
            flags=self.canonical_flags,
            env=self.env,
        )
        return list(traps.caught(situation))

    def objections(self) -> Iterator[Document]:
        """Yield what speaks against starting this server, the most telling first."""
        backends = [each for decision in self.decisions for each in decision.objections]
        yield from (each for each in backends if each["class"] != "known-bad-backend")
        yield from _trap_objections(self.traps)
        for format, reading, whose in self._checkpoints():
            yield from _conflict(format, whose)
            yield from _misreading(reading, whose)
        yield from (each for each in backends if each["class"] == "known-bad-backend")
        yield from self._parser()
        yield from self._draft()
        yield from self._too_few_gpus()
        if self.memory:
            yield from self.memory.objections()

    def _checkpoints(self) -> Iterator[tuple[Document, Document, str]]:
        """Yield (format, reading, what it is called) of each checkpoint that is served."""
        yield self.format, self.reading, "checkpoint"
        if self.draft:
            yield self.draft.format, self.draft.reading, "draft checkpoint"

    def _parser(self) -> Iterator[Document]:
        names = [arguments.canonical(flag.name) for flag in self.flags]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield reason("double-flag", f"--{name} is given by two of its names; keep one")
        for flag in self.flags:
            if wrong := arguments.wrong_number(flag.name, flag.value):
                yield wrong
            if flag.by != "workflow":
                build = (self.engine[each] for each in ("flags", "choices", "removed"))
                yield from arguments.objections(flag.name, flag.value, *build)

    def _draft(self) -> Iterator[Document]:
        if self.draft:
            algorithm = self.canonical_flags["speculative-algorithm"]
            model, flags = self.format["model"], self.engine["flags"]
            yield from drafting.objections(self.draft, str(algorithm), model, flags)

    def _too_few_gpus(self) -> Iterator[Document]:
        present = len(self.hardware["gpus"])
        if not self.on_cpu and self.spread.gpus > present:
            message = f"{self.spread} is {self.spread.gpus} GPUs; this machine has {present}"
            yield reason("too-few-gpus", message, hint="lower tp-size, pp-size or dp-size")

    def warnings(self) -> Iterator[Document]:
        for decision in self.decisions:
            yield from decision.warnings
        if self.memory:
            yield from self.memory.warnings()
        yield from self.trapped("warn")
        yield from _unsupported(self.hardware)
        for format, reading, whose in self._checkpoints():
            if format["verdict"] == "metadata-incomplete":
                notes = format.get("notes") or [f"the {whose}'s files don't tell every format"]
                yield {"class": "metadata-incomplete", "message": "; ".join(notes)}
            if reading.get("verdict") == "unknown":
                told = reading["message"] or f"how this build reads the {whose} is not known"
                yield {"class": "reading-unknown", "message": told}
        for name, kind in self.formats.items():
            if kind == "unknown" and name not in ("other", "embeddings"):
                yield {"class": "unknown-format", "message": f"the format of {name} is not known"}

    def trapped(self, effect: str) -> Iterator[Document]:
        """Yield what the traps of one effect say."""
        for trap in self.traps:
            if trap["effect"] == effect:
                yield {"class": trap["class"], "message": trap["message"]}

    def waiver(self, objection: Document) -> str | None:
        """Return the experiment's reason to go on against an objection, if it gives one."""
        key = WAIVERS.get(objection["class"])
        return self.experiment.get(key) if key else None

    def waived(self, objection: Document) -> Document:
        message = f"{objection['message']} (allowed by the config: {self.waiver(objection)})"
        return {"class": objection["class"], "message": message}

    def fields(self, *, warnings: list[Document]) -> Document:
        return {
            **_blank(self.experiment),
            "device": "cpu" if self.on_cpu else "cuda",
            "gpus": 0 if self.on_cpu else self.spread.gpus,
            "python": self.engine["python"],
            "pythonpath": self.engine["pythonpath"],
            "argv": _argv(self.flags),
            "env": dict(sorted(self.env.items())),
            "flags": [flag.document() for flag in self.flags],
            "backend": _by_module(self.decisions),
            "format": self.formats,
            "weights_bytes": self.format["weights_bytes"] or None,
            "draft_bytes": (self.draft.format["weights_bytes"] or None) if self.draft else None,
            "fit": self.memory.document() if self.memory else None,
            "warnings": warnings,
            "notes": list(self.trapped("note")),
        }


def _unsupported(hardware: Document) -> Iterator[Document]:
    """Yield what is there and can't be used: a GPU of another maker leaves a CPU host."""
    if hardware["unsupported"] and not hardware["gpus"]:
        found = ", ".join(hardware["unsupported"])
        message = f"{found} is not supported and stays unused; supported are {SUPPORTED}"
        yield {"class": "unsupported-accelerator", "message": message}


def _conflict(format: Document, whose: str) -> Iterator[Document]:
    if format["verdict"] == "conflict":
        contradictions = format["contradictions"]
        yield reason(
            "format-conflict",
            f"the {whose} contradicts itself: {(contradictions or ['see format.json'])[0]}",
            evidence=contradictions,
            hint="pin another revision, or give accept_conflict: <why>",
        )


def _misreading(reading: Document, whose: str) -> Iterator[Document]:
    if reading.get("verdict") in ("misreads", "cannot-load"):
        fixed = reading.get("fixed_by")
        yield reason(
            "misread-format",
            f"this build {reading['verdict'].replace('-', ' ')} the {whose}: {reading['message']}",
            hint=f"fixed by {fixed}" if fixed else "another engine, or accept_misreading: <why>",
        )


def _blank(experiment: Mapping[str, Any]) -> Document:
    """Return the fields of a plan in which nothing was decided."""
    return {
        "experiment": experiment["name"],
        "checkpoint": experiment["checkpoint"],
        "draft": experiment.get("draft"),
        "engine": experiment["engine"],
        "device": None,
        "gpus": 0,
        "python": None,
        "pythonpath": [],
        "argv": [],
        "env": {},
        "flags": [],
        "backend": {},
        "format": {},
        "weights_bytes": None,
        "draft_bytes": None,
        "fit": None,
        "warnings": [],
        "notes": [],
        "startup_max_s": experiment["server"].get("startup_max_s", STARTUP_MAX_S),
    }


def _argv(flags: Iterable[Flag]) -> list[str]:
    """Return the command line after the interpreter; launch fills ``{model}`` and ``{port}``."""
    words = ["-m", "sglang.launch_server", "--model-path", "{model}"]
    words += ["--host", "127.0.0.1", "--port", "{port}"]
    return words + [word for flag in flags for word in arguments.words(flag.name, flag.value)]


def _by_module(decisions: Iterable[Decision]) -> Document:
    """Return the decisions by module class; a second format of a class goes by both names."""
    found: Document = {}
    for each in decisions:
        name = f"{each.name}:{each.document['format']}" if each.name in found else each.name
        found[name] = each.document
    return found


def _canonical(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {arguments.canonical(name): value for name, value in flags.items()}


def _sound(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags without those whose value can't be calculated with."""
    return {k: value for k, value in flags.items() if not arguments.wrong_number(k, value)}


def _pull_requests(patches: Iterable[Document]) -> frozenset[int]:
    """Return the pull requests to SGLang itself that a build has as patches."""
    sources = (patch["source"] for patch in patches)
    return frozenset(
        int(source["pr"])
        for source in sources
        if "pr" in source and source.get("repo", "sgl-project/sglang") == "sgl-project/sglang"
    )


def _nvlink(hardware: Document) -> bool | None:
    """Say whether every pair of GPUs is joined by NVLink; None if that is not known."""
    joined = [link["nvlink"] for link in hardware["links"]]
    return None if not joined or None in joined else all(joined)


def _trap_objections(caught: Iterable[dict[str, Any]]) -> Iterator[Document]:
    for trap in caught:
        if trap["effect"] == "refuse":
            yield reason(trap["class"], trap["message"], evidence=trap["source"])
