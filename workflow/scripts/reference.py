"""Stage reference: how far an experiment's predictions are from its reference's."""

from bringup import artifact
from bringup.joblog import logged
from bringup.reference import stage


def main(snakemake):
    document = stage.reference(
        snakemake.wildcards.experiment,
        snakemake.params.reference,
        *artifact.read_each(snakemake.input, "own", "base"),
    )
    artifact.write(snakemake.output[0], document)


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
