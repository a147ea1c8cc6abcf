"""Stage report: the page that people act on."""

from pathlib import Path

from bringup import report
from bringup.joblog import logged


def main(snakemake):
    report.build(
        experiments=snakemake.params.experiments,
        documents=[Path(snakemake.input.hardware), *map(Path, snakemake.input.documents)],
        output=Path(snakemake.output[0]).parent,
    )


if __name__ == "__main__":
    with logged(snakemake.log[0]):
        main(snakemake)
