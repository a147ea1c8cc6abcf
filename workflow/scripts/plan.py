"""Stage plan: the whole command line with a reason for every flag, or the reason why not."""

from bringup import artifact, plan
from bringup.joblog import logged


def main(snakemake):
    entry, screened = snakemake.params.entry, snakemake.params.screened
    if screened:
        document = plan.screened(entry, screened)
    else:
        document = plan.plan(
            entry,
            format=artifact.read(snakemake.input.format),
            reading=artifact.read(snakemake.input.reading),
            engine=artifact.read(snakemake.input.engine),
            hardware=artifact.read(snakemake.input.hardware),
        )
    artifact.write(snakemake.output[0], document)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
