"""Stage metadata: what a checkpoint says it is, without its weights."""

from bringup import artifact, checkpoint
from bringup.joblog import logged


def main(snakemake):
    name = snakemake.wildcards.checkpoint
    artifact.write(snakemake.output[0], checkpoint.metadata(snakemake.params.entry, name=name))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
