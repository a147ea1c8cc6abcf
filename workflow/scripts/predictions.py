"""Stage predictions: what the server predicts on fixed texts, alone and within a batch."""

from pathlib import Path

from bringup import artifact, session
from bringup.joblog import logged
from bringup.reference import stage


def main(snakemake):
    output, experiment = Path(snakemake.output[0]), snakemake.wildcards.experiment
    plan, weights, build, server = artifact.read_each(
        snakemake.input, "plan", "weights", "engine", "server"
    )

    def read(boot):
        return stage.predictions(
            experiment,
            boot.id,
            boot.url,
            stage.load(Path(snakemake.input.texts)),
            timeout_s=snakemake.params.timeout_s,
            api_key=boot.endpoint.api_key,
        )

    document = session.served(
        stage.PREDICTIONS,
        read,
        plan,
        weights,
        build,
        cause=artifact.stopping(plan, weights, server),
        folder=output.parent,
        experiment=experiment,
    )
    artifact.write(output, document)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
