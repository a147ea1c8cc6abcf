"""An experiment's server in the hands of one job: leased, and its failure explained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bringup import engine, evidence, serving
from bringup.artifact import Document


@contextlib.contextmanager
def of(
    plan: Document, weights: Document, build: Document, *, folder: Path
) -> Iterator[serving.Boot]:
    """Yield the running server of an experiment, for this job alone.

    Args:
        plan: ``plan.json``, status ok.
        weights: ``weights.json``, status ok.
        build: ``engine.json``; an environment that was deleted since is built again.
        folder: where ``server.log`` goes.

    Raises:
        serving.ServerFailed: it did not come up, or died; see `explained`.
        OSError: something that says nothing about the experiment (devices, disk, network).
    """
    engine.restore(build)
    with serving.lease(serving.ServerSpec.of(plan, weights), log_dir=folder) as boot:
        yield boot


def explained(failure: serving.ServerFailed) -> Document:
    """Return the reason for a server's failure, from its log."""
    return evidence.diagnose(
        failure.log,
        exit_code=failure.exit_code,
        timed_out=failure.cause in ("silent", "too-slow"),
    )
