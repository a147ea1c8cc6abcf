"""Stage probe: ask the server what we know the answers to, before any speed is measured."""

from pathlib import Path

from bringup import artifact, probes, serving, session
from bringup.joblog import logged


def main(snakemake):
    experiment, settings = snakemake.wildcards.experiment, snakemake.params.probes
    plan, weights, server = (
        artifact.read(snakemake.input[name]) for name in ("plan", "weights", "server")
    )
    if cause := artifact.stopping(plan, weights, server):
        document = artifact.skipped(probes.SCHEMA, cause, experiment=experiment)
    else:
        build = artifact.read(snakemake.input.engine)
        try:
            with session.of(plan, weights, build, folder=Path(snakemake.output[0]).parent) as boot:
                items = probes.ask(
                    boot.url,
                    probes.load(settings["suites"], Path(snakemake.input.suites[0]).parent),
                    timeout_s=settings["timeout_s"],
                    api_key=boot.endpoint.api_key,
                )
            document = probes.document(
                experiment,
                boot.id,
                settings["suites"],
                items,
                probes.Thresholds(settings["pass_share"], settings["degraded_share"]),
            )
        except serving.ServerFailed as failure:
            document = artifact.document(
                probes.SCHEMA, "failed", session.explained(failure), experiment=experiment
            )
    artifact.write(snakemake.output[0], document)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
