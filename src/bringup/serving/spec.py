"""What a server is asked to be: built from the plan's and the weights' documents."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bringup.artifact import Document
from bringup.paths import actual, expanded
from bringup.redact import revealed
from bringup.resident import Spec

GRACE_S = 30.0
"""Seconds between TERM and KILL: SGLang drains its requests, then ends its workers."""

THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""Variables that Snakemake sets to a job's own threads (9.27, ``snakemake/shell.py``).

They are about the job, not about the server, which they would slow down on a CPU.
"""


@dataclass(frozen=True)
class ServerSpec:
    """A server's command line and environment, and what it must turn out to be.

    Attributes:
        process: what runs; ``{port}`` in its argv is filled at each start.
        model: the folder that it serves.
        gpus: how many GPUs it takes; 0 on a CPU.
        startup_max_s: how long it may take to its first answer, whatever its log says.
        api_key: what it wants to be asked with.
    """

    process: Spec
    model: str
    gpus: int
    startup_max_s: float
    api_key: str | None = None

    @classmethod
    def of(cls, plan: Document, weights: Document, boot: int = 1) -> ServerSpec:
        """Return the server of an experiment, by its ``plan.json`` and ``weights.json``.

        ``boot`` counts the lives that its sweep asks for: each is a server of its own, which no
        job of another one uses.
        """
        model = str(actual(weights["snapshot"]))
        served = {"{model}": model}
        if weights.get("draft"):
            served["{draft}"] = str(actual(weights["draft"]))
        argv = [revealed(served.get(word) or expanded(word)) for word in plan["argv"]]
        pythonpath = os.pathsep.join(str(actual(entry)) for entry in plan["pythonpath"])
        environment: dict[str, str | None] = {
            **dict.fromkeys(THREAD_LIMITS),
            "PYTHONDONTWRITEBYTECODE": None,  # every start would compile all of SGLang again
            "PYTHONPATH": pythonpath or None,
            "PYTHONUNBUFFERED": "1",  # what it printed last must not be lost when it dies
            **{name: revealed(value) for name, value in plan["env"].items()},
        }
        return cls(
            process=Spec(
                name=plan["experiment"] + (f"#{boot}" if boot > 1 else ""),
                argv=(str(actual(plan["python"])), *argv),
                env=environment,
                grace_s=GRACE_S,
            ),
            model=model,
            gpus=plan["gpus"],
            startup_max_s=plan["startup_max_s"],
            api_key=value_of("--api-key", argv),
        )


def value_of(flag: str, argv: list[str]) -> str | None:
    """Return what follows ``flag`` in a command line (``--flag value`` or ``--flag=value``)."""
    for word, following in zip(argv, [*argv[1:], None], strict=True):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
