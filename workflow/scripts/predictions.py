"""Stage predictions: what the server predicts on fixed texts, alone and within a batch."""

from pathlib import Path

from bringup import artifact, session
from bringup.joblog import logged
from bringup.reference import stage


def main(snakemake):
    output, experiment = Path(snakemake.output[0]), snakemake.wildcards.experiment
    plan, weights, server = artifact.read_each(snakemake.input, "plan", "weights", "server")
    if cause := artifact.stopping(plan, weights, server):
        artifact.write(output, artifact.skipped(stage.PREDICTIONS, cause, experiment=experiment))
        return

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
        artifact.read(snakemake.input.engine),
        folder=output.parent,
        experiment=experiment,
    )
    artifact.write(output, document)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
