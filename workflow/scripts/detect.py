"""Stage detect: the formats that a checkpoint's tensors really have."""

from bringup import artifact, formats
from bringup.joblog import logged


def main(snakemake):
    metadata = artifact.read(snakemake.input.metadata)
    artifact.write(snakemake.output[0], formats.detect(metadata))


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
