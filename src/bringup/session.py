"""An experiment's server in the hands of one job: leased, its client, and its failure explained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup import artifact, engine, evidence, serving
from bringup.artifact import Document
from bringup.engine import worker
from bringup.resident import Home

if TYPE_CHECKING:
    from bringup.load import clients


@contextlib.contextmanager
def of(
    plan: Document, weights: Document, build: Document, *, folder: Path, boot: int = 1
) -> Iterator[serving.Boot]:
    """Yield the running server of an experiment, for this job alone.

    Args:
        plan: ``plan.json``, status ok.
        weights: ``weights.json``, status ok.
        build: ``engine.json``; what was deleted of it since is built again.
        folder: the experiment's, where ``server.log`` goes; that of a later boot goes into
            ``boot<number>`` there, as both may run at once.
        boot: which of the experiment's boots.

    Raises:
        serving.ServerFailed: it did not come up, or died; see `explained`.
        OSError: something that says nothing about the experiment (devices, disk, network).
    """
    engine.restore(build)
    spec = serving.ServerSpec.of(plan, weights, boot)
    log_dir = folder if boot == 1 else folder / f"boot{boot}"
    with serving.lease(spec, log_dir=log_dir) as leased:
        yield leased


def served(
    schema: str,
    work: Callable[[serving.Boot], Document],
    plan: Document,
    weights: Document,
    build: Document,
    *,
    cause: Document | None,
    folder: Path,
    boot: int = 1,
    **who: Any,
) -> Document:
    """Return the document that ``work`` makes of an experiment's server.

    A server that fails is a result: its document says so, and keeps what ``work`` had made.
    Where an earlier document is the ``cause`` not to start, it is skipped.

    Args:
        schema: the document's.
        work: is given the server, ready, and for this job alone.
        plan: as for `of`.
        weights: as for `of`.
        build: as for `of`.
        cause: the earlier document after which nothing is to run, if there is one.
        folder: as for `of`.
        boot: as for `of`.
        who: what the document says in any case.

    Raises:
        OSError: something that says nothing about the experiment.
    """
    if cause:
        return artifact.skipped(schema, cause, **who)
    document = artifact.document(schema, **who)
    try:
        with of(plan, weights, build, folder=folder, boot=boot) as leased:
            document = work(leased)
    except serving.ServerFailed as failure:
        document |= {"status": "failed", "reason": explained(failure), "boot": failure.boot}
    return document


def retire(plan: Document, weights: Document) -> None:
    """End an experiment's server, so that whoever comes next starts a fresh one."""
    Home.of(serving.ServerSpec.of(plan, weights).process).stop()


def client(name: clients.Name, build: Document, *, log: Path) -> clients.Client:
    """Return a load client, ready: SGLang's own is imported in the engine's interpreter.

    Raises:
        OSError: it could not be started; so does what is returned when a run fails.
    """
    from bringup.load import clients  # asyncio and more, for a job that measures nothing

    if name == "direct":
        return clients.direct

    def ask(**request: object) -> None:
        answer = worker.ask(build, request, log=log)
        if not answer["ok"]:
            raise OSError(f"the load client failed: {answer['error']}; see {log}")

    ask(command="warm")
    return clients.sglang(lambda argv, output: ask(command="bench", argv=argv, output=str(output)))


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
