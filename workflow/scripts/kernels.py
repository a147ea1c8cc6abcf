"""Stage kernels: a short profile of real decoding, and what it proves about the backends."""

import tempfile
from pathlib import Path

from bringup import artifact, evidence, serving, session
from bringup.joblog import logged


def main(snakemake):
    experiment, output = snakemake.wildcards.experiment, Path(snakemake.output[0])
    plan, weights, server, probe = (
        artifact.read(snakemake.input[name]) for name in ("plan", "weights", "server", "probe")
    )
    if cause := artifact.stopping(plan, weights, server, probe):
        artifact.write(
            output, artifact.skipped(evidence.KERNELS_SCHEMA, cause, experiment=experiment)
        )
        return
    build = artifact.read(snakemake.input.engine)
    try:
        with (
            session.of(plan, weights, build, folder=output.parent) as boot,
            tempfile.TemporaryDirectory(prefix="bringup-traces-") as traces,
        ):
            document = evidence.take_kernels(
                boot.endpoint,
                server,
                experiment=experiment,
                boot=boot.id,
                log=boot.log,
                folder=Path(traces),
                concurrency=snakemake.params.kernels["concurrency"],
                ranks=plan["gpus"],
            )
        session.retire(plan, weights)  # profiling may slow the server down for good
    except serving.ServerFailed as failure:
        document = artifact.document(
            evidence.KERNELS_SCHEMA, "failed", session.explained(failure), experiment=experiment
        )
    artifact.write(output, document)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
