"""An experiment's server in the hands of one job: leased, its client, and its failure explained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bringup import engine, evidence, serving
from bringup.artifact import Document
from bringup.engine import worker
from bringup.load.point import Bench
from bringup.resident import Home


@contextlib.contextmanager
def of(
    plan: Document, weights: Document, build: Document, *, folder: Path
) -> Iterator[serving.Boot]:
    """Yield the running server of an experiment, for this job alone.

    Args:
        plan: ``plan.json``, status ok.
        weights: ``weights.json``, status ok.
        build: ``engine.json``; what was deleted of it since is built again.
        folder: where ``server.log`` goes.

    Raises:
        serving.ServerFailed: it did not come up, or died; see `explained`.
        OSError: something that says nothing about the experiment (devices, disk, network).
    """
    engine.restore(build)
    with serving.lease(serving.ServerSpec.of(plan, weights), log_dir=folder) as boot:
        yield boot


def retire(plan: Document, weights: Document) -> None:
    """End an experiment's server, so that whoever comes next starts a fresh one."""
    Home.of(serving.ServerSpec.of(plan, weights).process).stop()


def client(build: Document, *, log: Path) -> Bench:
    """Return what runs the load client in the engine's interpreter, imported and ready.

    Raises:
        OSError: it could not be started; so does what is returned when a run fails.
    """

    def ask(**request: object) -> None:
        answer = worker.ask(build, request, log=log)
        if not answer["ok"]:
            raise OSError(f"the load client failed: {answer['error']}; see {log}")

    ask(command="warm")
    return lambda argv, output: ask(command="bench", argv=argv, output=str(output))


FATES = {
    "silent": "timeout-without-progress",
    "too-slow": "timeout-with-progress",
    "bad-answer": "bad-answer",
    "no-answer": "no-answer",
    "not-as-planned": "not-as-planned",
}
"""What `serving` calls the ends that it sees from outside, and what the evidence calls them."""


def explained(failure: serving.ServerFailed) -> Document:
    """Return the reason for a server's failure, from its log and from what was seen of it."""
    return evidence.diagnose(
        failure.log,
        exit_code=failure.exit_code,
        ready=failure.stage == "use",
        fate=FATES.get(failure.cause),
        said=str(failure),
    )
