"""Stage hardware: write down the machine that the workflow was started on."""

from bringup import artifact
from bringup.joblog import logged


def main(snakemake):
    artifact.write(snakemake.output[0], snakemake.params.fingerprint)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
