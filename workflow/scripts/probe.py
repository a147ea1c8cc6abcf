"""Stage probe: ask the server what we know the answers to, before any speed is measured."""

from pathlib import Path

from bringup import artifact, probes, session
from bringup.joblog import logged


def main(snakemake):
    output, experiment = Path(snakemake.output[0]), snakemake.wildcards.experiment
    settings = snakemake.params.probes
    plan, weights, build, server = artifact.read_each(
        snakemake.input, "plan", "weights", "engine", "server"
    )

    def ask(boot):
        items = probes.ask(
            boot.url,
            probes.load(settings["suites"], Path(snakemake.input.suites[0]).parent),
            timeout_s=settings["timeout_s"],
            template={**probes.NO_THINKING, **settings["chat_template_kwargs"]},
            api_key=boot.endpoint.api_key,
        )
        limits = probes.Thresholds(settings["pass_share"], settings["degraded_share"])
        return probes.document(experiment, boot.id, settings["suites"], items, limits)

    document = session.served(
        probes.SCHEMA,
        ask,
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
