"""Stage accuracy: benchmarks by a maintained harness, on the same server."""

from pathlib import Path

from bringup import accuracy, artifact, session
from bringup.joblog import logged


def main(snakemake):
    output, experiment = Path(snakemake.output[0]), snakemake.wildcards.experiment
    plan, weights, build, probe = artifact.read_each(
        snakemake.input, "plan", "weights", "engine", "probe"
    )

    def measure(boot):
        return accuracy.measure(
            experiment,
            boot.id,
            boot.url,
            snakemake.params.accuracy,
            api_key=boot.endpoint.api_key,
        )

    document = session.served(
        accuracy.SCHEMA,
        measure,
        plan,
        weights,
        build,
        cause=artifact.stopping(plan, weights, probe),
        folder=output.parent,
        experiment=experiment,
    )
    artifact.write(output, document)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
