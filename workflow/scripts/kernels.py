"""Stage kernels: a short profile of real decoding, and what it proves about the backends."""

import tempfile
from pathlib import Path

from bringup import artifact, evidence, session
from bringup.joblog import logged


def main(snakemake):
    output, experiment = Path(snakemake.output[0]), snakemake.wildcards.experiment
    plan, weights, build, server, probe = artifact.read_each(
        snakemake.input, "plan", "weights", "engine", "server", "probe"
    )
    cause = artifact.stopping(plan, weights, server, probe)

    def profile(boot):
        with tempfile.TemporaryDirectory(prefix="bringup-traces-") as traces:
            return evidence.take_kernels(
                boot.endpoint,
                server,
                experiment=experiment,
                boot=boot.id,
                log=boot.log,
                folder=Path(traces),
                concurrency=snakemake.params.kernels["concurrency"],
                ranks=plan["gpus"],
            )

    document = session.served(
        evidence.KERNELS_SCHEMA,
        profile,
        plan,
        weights,
        build,
        cause=cause,
        folder=output.parent,
        experiment=experiment,
    )
    if not cause:
        session.retire(plan, weights)  # profiling may slow the server down for good
    artifact.write(output, document)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
