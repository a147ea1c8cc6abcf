"""Stage reading: how this build of SGLang reads this checkpoint."""

from bringup import artifact, reading
from bringup.joblog import logged


def main(snakemake, log):
    document = reading.read(
        artifact.read(snakemake.input.metadata),
        artifact.read(snakemake.input.format),
        artifact.read(snakemake.input.engine),
        log=log,
    )
    artifact.write(snakemake.output[0], document)


if __name__ == "__main__":
    with logged(snakemake.log[0]) as log:
        main(snakemake, log)
