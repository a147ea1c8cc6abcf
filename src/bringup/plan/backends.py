"""Which backend an experiment gets, and why: what was asked for, against the routing table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bringup import routing
from bringup.artifact import Document, reason

DENSE_CLASSES = ("attention", "dense_mlp", "shared_experts", "lm_head")
"""Module classes of linear layers that are no experts."""


WORDS = {
    "experts": "{} experts",
    "dense": "{} linear layers",
    "attention": "attention with a {} KV cache",
    "sparse-attention": "sparse attention with a {} KV cache",
}
"""What a module class of the routing table is called, with its format."""


@dataclass(frozen=True)
class Target:
    """The checkpoint, machine and build that a backend is chosen for."""

    formats: Mapping[str, str]
    """Format by module class."""
    model: str | None
    """The model's architecture, as ``config.json`` spells it."""
    gpu: str
    """``sm90`` … or ``cpu``."""
    version: str | None
    pull_requests: Collection[int]
    """What the build has beyond its version."""
    kv_cache: str | None = None
    """Format of the KV cache's numbers; None where there is no question about attention."""

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield (module class of the routing table, format), experts first, each pair once."""
        yield from self._weights()
        if self.kv_cache:
            cache = self.kv_cache if self.kv_cache in ("fp8", "nvfp4") else "bf16"
            yield "attention", cache
            if "sparse-attention" in routing.kinds(self.model):
                yield "sparse-attention", cache

    def _weights(self) -> Iterator[tuple[str, str]]:
        if "experts" in self.formats:
            yield "experts", self.formats["experts"]
        dense = (self.formats[name] for name in DENSE_CLASSES if name in self.formats)
        for format in dict.fromkeys(dense):
            yield "dense", format

    def rank(self, module: str, format: str, flag: str | None) -> list[routing.Row]:
        situation = (format, module, self.model, self.gpu, self.version)
        return routing.rank(*situation, patches=self.pull_requests, flag=flag)

    def automatic(self, module: str, format: str, flag: str | None) -> routing.Row | None:
        situation = (format, module, self.model, self.gpu, self.version)
        return routing.automatic(*situation, patches=self.pull_requests, flag=flag)


@dataclass
class Decision:
    """What became of the question for one module class and format."""

    name: str
    """In the plan: the module class; for further arguments of it, ``class:argument``."""
    document: Document
    """``{asked, chosen, recommended, automatic, known, why, source}`` for the plan."""
    flag: tuple[str, str] | None = None
    """The argument that the table adds."""
    row: str | None = None
    """The row of the table that says so."""
    objections: list[Document] = field(default_factory=list)
    warnings: list[Document] = field(default_factory=list)


def decide(
    target: Target, server: Mapping[str, Any], choices: Mapping[str, Collection[str]]
) -> list[Decision]:
    """Choose the backends of an experiment.

    Args:
        target: what they are chosen for.
        server: the server arguments of the config; a backend there beats the table.
        choices: the values that the build's parser allows, by flag.
    """
    decisions = []
    for module, format in target.parts():
        for place, flag in enumerate(_flags(module, format, server)):
            name = f"{module}:{flag}" if place else module
            asked = str(server.get(flag) or routing.AUTO) if flag else routing.AUTO
            offered = choices.get(flag or "", ())
            decision = _Question(target, name, module, format, flag, asked, offered).answer()
            if decision:
                decisions.append(decision)
    return decisions


def _flags(module: str, format: str, server: Mapping[str, Any]) -> list[str | None]:
    """Return the arguments that are questions for a module class.

    Those for a part of the work only where they are set, and then the one for the whole only if
    it is set too.
    """
    found: list[str | None] = []
    for row in routing.flags(module, format):
        parts = [name for name in row["also"] if server.get(name)]
        if server.get(row["flag"]) or not parts:
            found.append(row["flag"])
        found += parts
    return found or [None]


class _Question:
    """One module class, one format: which backend?"""

    def __init__(
        self,
        target: Target,
        name: str,
        module: str,
        format: str,
        flag: str | None,
        asked: str,
        offered: Collection[str],
    ) -> None:
        self.name = name
        self.module = module
        self.format = format
        self.flag = flag
        self.asked = asked
        self.gpu = target.gpu
        self.ranked = target.rank(module, format, flag)
        self.own = target.automatic(module, format, flag)
        self.best = next(
            (
                row
                for row in self.ranked
                if row["verdict"] in routing.GOOD
                and (not offered or row["backend"] in {routing.AUTO, *offered})
            ),
            None,
        )
        self.what = f"{WORDS[module].format(format)} on {self.gpu}"

    def answer(self) -> Decision | None:
        """Return the decision, or None where there is nothing to decide and nothing to say."""
        if self.flag is None and not self.ranked:
            return None
        if self._row(routing.AUTO) and all(row["verdict"] in routing.BAD for row in self.ranked):
            return self._nothing_works()
        if self.asked != routing.AUTO:
            return self._as_asked()
        return self._recommended() if self.best and self._may_choose() else self._left_to_build()

    def _may_choose(self) -> bool:
        """Say whether the table may choose: attention only where it knows what the build takes.

        A build chooses attention by more than a row can say (drafting, page sizes, its own flags).
        """
        assert self.best is not None
        weights = self.module in ("experts", "dense")
        return weights or self.own is not None or self.best["verdict"] == "recommended"

    def _nothing_works(self) -> Decision:
        row = self._row(self.asked) or self._row(routing.AUTO) or self.ranked[0]
        name = "unsupported-format-on-cpu" if self.gpu == "cpu" else "unsupported-format"
        message = f"{self.what}: {row['reason']}"
        objection = reason(name, message, evidence=row["sources"])
        return Decision(self.name, self._document(self.asked, row), objections=[objection])

    def _as_asked(self) -> Decision:
        row = self._row(self.asked)
        decision = Decision(self.name, self._document(self.asked, row))
        if row is None:
            message = f"nothing is known of {self.asked} for {self.what}"
            decision.warnings.append({"class": "unknown-combination", "message": message})
            return decision
        message = f"{self.asked} for {self.what}: {row['reason']}"
        if row["verdict"] in routing.BAD:
            hint = f"{self.best['backend']} is known to work" if self.best else None
            decision.objections.append(
                reason("known-bad-backend", message, evidence=row["sources"], hint=hint)
            )
        elif row["verdict"] not in routing.GOOD:
            class_ = "unknown-combination" if row["verdict"] == "unknown" else "slow-backend"
            decision.warnings.append({"class": class_, "message": message})
        return decision

    def _recommended(self) -> Decision:
        """Take the table's best; say it outright unless the build would take it anyway."""
        assert self.best is not None
        chosen = self.best["backend"]
        decision = Decision(self.name, self._document(chosen, self.best))
        builds_own = self.own is not None and self.own["backend"] == chosen
        certain = self.best["verdict"] == "recommended" or not builds_own
        if self.flag and chosen != routing.AUTO and certain:
            decision.flag, decision.row = (self.flag, chosen), self.best["row"]
        return decision

    def _left_to_build(self) -> Decision:
        own = self._row(self.own["backend"]) if self.own else None
        decision = Decision(self.name, self._document(routing.AUTO, own))
        if own and own["verdict"] in routing.BAD:
            message = (
                f"by itself this build takes {own['backend']} for {self.what}: {own['reason']}"
            )
            decision.objections.append(
                reason(
                    "known-bad-backend",
                    message,
                    evidence=own["sources"],
                    hint="name another backend; none is known to work",
                )
            )
        elif own and own["verdict"] == "starts-but-slow":
            message = f"{own['backend']} for {self.what}: {own['reason']}"
            decision.warnings.append({"class": "slow-backend", "message": message})
        elif own is None and self.module == "experts":
            message = f"nothing is known of {self.what}; the choice is left to the build"
            decision.warnings.append({"class": "unknown-combination", "message": message})
        return decision

    def _row(self, backend: str) -> routing.Row | None:
        return next((row for row in self.ranked if row["backend"] == backend), None)

    def _document(self, chosen: str, row: routing.Row | None) -> Document:
        return {
            "format": self.format,
            "flag": self.flag,
            "asked": self.asked,
            "chosen": chosen,
            "recommended": self.best["backend"] if self.best else None,
            "automatic": self._own_document(),
            "known": row["verdict"] if row else "unknown",
            "why": row["reason"] if row else None,
            "source": row["sources"] if row else [],
        }

    def _own_document(self) -> Document | None:
        """Return what the build would take by itself, and what is known of that."""
        if self.own is None:
            return None
        row = self._row(self.own["backend"])
        return {
            "backend": self.own["backend"],
            "why": self.own["reason"],
            "known": row["verdict"] if row else "unknown",
            "source": self.own["sources"],
        }
